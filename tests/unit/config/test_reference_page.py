"""The configuration reference: each key of each section has a meaning, a unit and a valid example."""

import re
import tomllib
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from tagmill.config.base import Section
from tagmill.config.reference_page import SECTIONS, page, toml
from tagmill.config.settings import Settings

UNITS = re.compile(
    r"\b(seconds?|bytes|days|rows|records|events|percent|offsets|partitions|persistence_ids|port|numbers|tags|"
    r"slices|fields|levels|times|the same)\b",
    re.IGNORECASE,
)


def sections(section: type[Section] = Section) -> Iterator[type[Section]]:
    for child in section.__subclasses__():
        if child.__module__.startswith("tagmill."):
            yield child
            yield from sections(child)


FIELDS = {
    f"{section.__name__}.{name}": field
    for section in sections()
    for name, field in section.model_fields.items()
}


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_key_has_meaning_and_valid_example(field: FieldInfo) -> None:
    """A key is explained in short sentences, and its one example is TOML that the model takes."""
    sentences = re.split(r"(?<=[.:;]) ", field.description or "")
    assert sentences[-1].endswith((".", ")")) and sentences[-1] and "|" not in (field.description or "")
    assert max(len(sentence.split()) for sentence in sentences) <= 30
    (example,) = field.examples or [None]
    read = tomllib.loads(f"key = {toml(example)}")["key"]
    TypeAdapter(Annotated[(field.annotation, *field.metadata, "")]).validate_python(read)


def test_quantity_names_its_unit() -> None:
    """A key that is a number says what it counts."""
    numbers: tuple[Any, ...] = (int, float, int | None, float | None, list[float])
    quantities = {name: field for name, field in FIELDS.items() if field.annotation in numbers}
    assert len(quantities) > 40
    assert [name for name, field in quantities.items() if not UNITS.search(field.description or "")] == []


def test_page_has_every_section() -> None:
    """Each section of the model has a table, but for bases of others; the file's sections are all named."""
    bases = {base for section in sections() for base in section.__mro__[1:]}
    assert set(SECTIONS.values()) == set(sections()) - bases
    text = page()
    top = {name for name, field in Settings.model_fields.items() if field.annotation in SECTIONS.values()}
    assert len(top) == 6 and all(f"\n## [{name}]\n" in text for name in top)


@pytest.mark.parametrize(
    "value",
    [True, 1, 1.5, "a b", 'say "so"', [], ["a", 2], {}, {"a.b": {"c": [False]}, "d-e": "f"}],
    ids=str,
)
def test_toml_reads_back_equal(value: Any) -> None:
    """A value written as TOML is read back as the same value."""
    assert tomllib.loads(f"key = {toml(value)}") == {"key": value}
