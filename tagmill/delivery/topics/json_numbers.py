"""Read JSON numbers without loss: as a double if it holds the number, else as a decimal number. Pure."""

from decimal import Context, Decimal, InvalidOperation

# A double holds every number of 15 digits, which with their point are this many characters.
SAFE_LENGTH = 16
# From here on a double may be another whole number than its text.
SAFE_SIZE = 2.0**53
# No double has more significant digits than this.
MOST_DIGITS = 767


class Number(Decimal):
    """JSON number that a double would round, or whose double is another whole number."""

    def shortest(self) -> str:
        """Return the same text for the same number, however it was written: digits, "e" and the exponent of
        the last digit.
        """
        sign, digits, exponent = self.as_tuple()
        assert isinstance(exponent, int)
        text = "".join(map(str, digits))
        kept = text.rstrip("0")
        return f"{'-' if sign else ''}{kept}e{exponent + len(text) - len(kept)}"

    def double(self) -> float | None:
        """Return the double that its text is a rounded form of (as `%.17g` writes it); None if there is
        none.
        """
        number = float(self)
        digits = len(self.shortest().partition("e")[0].lstrip("-"))
        written = Context(prec=min(max(digits, 1), MOST_DIGITS)).create_decimal_from_float(number)
        return number if written == self else None


def read_number(text: str) -> float | Number | str:
    """Return a JSON number with a point or an exponent without loss: a float, a Number, or its text if no
    decimal can hold it.
    """
    number = float(text)
    if len(text) <= SAFE_LENGTH and "e" not in text and "E" not in text:
        return number
    if repr(number) == text and abs(number) < SAFE_SIZE:
        return number
    try:
        exact = Number(text)
    except InvalidOperation:
        return text
    return number if exact == number or (abs(number) < SAFE_SIZE and exact.double() is not None) else exact
