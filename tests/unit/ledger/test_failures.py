"""Texts of failures: one line, without passwords."""

from pydantic import SecretStr

from tagmill.config.settings import Settings
from tagmill.errors import StoreUnavailable
from tagmill.ledger.failures import MAX_ERROR_CHARACTERS, safe_text


def test_safe_text_hides_passwords():
    settings = Settings.model_validate({"cassandra": {"username": "u", "password": SecretStr("pa55word")}})
    error = StoreUnavailable("http://me:other@host refused pa55word\nand a trace")
    assert safe_text(error, settings) == "http://***@host refused ***"


def test_safe_text_names_defects_and_ends():
    settings = Settings.model_validate({})
    assert safe_text(KeyError("x"), settings) == "KeyError: 'x'"
    assert safe_text(ValueError(), settings) == "ValueError:"
    assert len(safe_text(ValueError("x" * 5000), settings)) == MAX_ERROR_CHARACTERS
