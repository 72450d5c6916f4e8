"""What a run says of its columns: which values became null and which paths matched nothing."""

import json

import pytest

from tagmill.delivery.topics.reader_notes import Notes, warnings
from tests.unit.delivery.topics.test_vectorized_decoder import decoded, topic

EVENT = {
    "project": "p",
    "event_type": "e",
    "product_id": 1,
    "service.name": "s",
    "customer": {"Name": "n", "id": None},
}


def said(columns, monkeypatch, known=(), set_apart=(), **keys):
    chosen = topic(columns, **keys)
    notes = decoded([json.dumps(EVENT).encode()] * 3, chosen, 1, monkeypatch)[2]
    return list(warnings(notes, chosen, known, set_apart))


@pytest.mark.parametrize(
    ("path", "like"),
    [
        ("customer.name", "; the nearest is customer.Name"), ("Customer.Name", "; the nearest is " "customer.Name"),
        ("service.name", '; the nearest is "service.name"'), ("custmer.Name", "; the nearest is " "customer.Name"), ("zzz", ""),
    ],
)  # fmt: skip
def test_path_without_match_names_nearest_field(path, like, monkeypatch):
    expected = [f"column x: no event of this run has a field {path}{like}"]
    assert said([{"name": "x", "path": path}], monkeypatch) == expected
    assert said([{"name": "y", "path": "project"}], monkeypatch, version_field=path) == [
        expected[0].replace("column x", "column schema_version")
    ]


@pytest.mark.parametrize("path", ["customer.Name", "customer.id", '"service.name"', "project"])
def test_path_that_matches_is_no_matter(path, monkeypatch):
    """Say nothing of a path that matches, also if it is null in all events."""
    assert said([{"name": "x", "path": path}], monkeypatch) == []


def test_known_path_is_no_matter(monkeypatch):
    """Say nothing of a path that the schemas have, or of a column that a person has set apart."""
    assert (
        said([{"name": "x"}], monkeypatch, known={"x"})
        == []
        == said([{"name": "x"}], monkeypatch, set_apart=["x"])
    )


def test_values_that_became_null_are_counted_by_reason(monkeypatch):
    assert said([{"name": "x", "path": "project", "type": "Date"}], monkeypatch) == [
        "column x: 3 values are null, since each is no Date; the payloads have them"
    ]


def test_paths_of_many_fields_are_bounded():
    notes = Notes()
    notes.list_fields({f"f{number}": {}} for number in range(5000))
    notes.list_fields([{f"g{number}": {} for number in range(5000)}])
    assert len(notes.paths) == 50
    wide = Notes()
    wide.list_fields([{f"g{number}": {} for number in range(5000)}])
    assert len(wide.paths) == 1000
