"""Variables of the environment as Tagmill reads them: a secret may be in a file that a variable names.

`TAGMILL_CASSANDRA__PASSWORD_FILE` stands for `TAGMILL_CASSANDRA__PASSWORD`, and so on. Containers mount secrets
as files.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic_settings import BaseSettings, EnvSettingsSource

from tagmill.domain.nearest import did_you_mean
from tagmill.errors import ConfigurationError

# Keys that the environment or an Airflow connection has, never the file.
SECRETS = ("username", "password", "tls_key_password")
# Keys of a store's section, besides its addresses and secrets, that say how it is connected to.
SECURITY = (
    "tls",
    "tls_ca_file",
    "tls_certificate_file",
    "tls_key_file",
    "sasl_mechanism",
    "oauth_token_url",
    "oauth_scope",
    "oauth_extensions",
    "oauth_ca_file",
)
FILE = "_file"
# Begins the variables' names, which are compared in lower case.
PREFIX = "tagmill_"
# Bytes of a file with a secret; a larger one is another file.
LARGEST = 64 * 1024


def environment_source(settings: type[BaseSettings]) -> EnvSettingsSource:
    """Return the environment as a source of settings.

    Raises ConfigurationError if a secret's file can't be read, or a variable names a section that there is not.
    """
    source = EnvSettingsSource(settings)
    source.env_vars = _with_files(source.env_vars)
    for name in source.env_vars:
        section, nested, _ = name.removeprefix(PREFIX).partition("__")
        if nested and name.startswith(PREFIX) and section not in settings.model_fields:
            known = ", ".join(settings.model_fields)
            raise ConfigurationError(
                f"environment: {name.upper()}: there is no section {section} (there are: {known})"
                f"{did_you_mean(section, settings.model_fields)}"
            )
    return source


def variables_of(section: str) -> list[str]:
    """Return the names of the variables that give a section, or keys of it, sorted."""
    names = (name.lower() for name in os.environ)
    return sorted(
        name.upper()
        for name in names
        if name == f"{PREFIX}{section}" or name.startswith(f"{PREFIX}{section}__")
    )


def _with_files(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Replace variables that name files by those with the content; one that has the secret itself wins."""
    known = dict(variables)
    endings = tuple(f"__{secret}{FILE}" for secret in SECRETS)
    for name in [name for name in known if name.startswith(PREFIX) and name.endswith(endings)]:
        file = known.pop(name)
        known.setdefault(name.removesuffix(FILE), _content(name, file or ""))
    return known


def _content(name: str, file: str) -> str:
    try:
        with Path(file).open(encoding="utf-8") as stream:
            content = stream.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise ConfigurationError(f"environment: {name.upper()}: {file} can't be read: {reason}") from None
    if len(content) > LARGEST:
        raise ConfigurationError(f"environment: {name.upper()}: {file} is larger than a secret can be")
    return content.rstrip("\r\n")
