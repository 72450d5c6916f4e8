"""Show URLs that may have a password. Pure."""

from urllib.parse import urlsplit

MASK = "****"


def without_password(text: str) -> str:
    """Return a text with MASK in place of the password, if it is a URL with one."""
    if "@" not in text or "://" not in text:
        return text
    try:
        password = urlsplit(text).password
    except ValueError:
        return text
    return text.replace(f":{password}@", f":{MASK}@", 1) if password else text
