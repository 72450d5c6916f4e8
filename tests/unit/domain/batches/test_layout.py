"""One list of columns for the sealed file, the table, the insert and the checksum."""

import re

import pytest

from tagmill.domain.batches.layout import COLUMNS, NAMES, TAG_VIEWS, event_text_sql


@pytest.mark.parametrize(
    "text",
    [
        TAG_VIEWS.input_structure(),
        TAG_VIEWS.insert_expressions(),
        TAG_VIEWS.table_columns(),
        TAG_VIEWS.row_checksum_sql(),
    ],
    ids=["input", "insert", "table", "checksum"],
)
def test_columns_are_in_all_texts_in_order(text: str) -> None:
    """Input structure, insert, table and checksum name all columns in the same order."""
    places = [text.index(f"`{name}`") for name in NAMES]
    assert places == sorted(places) and len(set(places)) == len(NAMES)


def test_names_are_unique_and_plain() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(re.fullmatch("[a-z_]+", name) for name in NAMES)


def test_a_column_is_nullable_everywhere_or_nowhere() -> None:
    for column in COLUMNS:
        assert {column.nullable} == {"Nullable" in column.file_type, "Nullable" in column.table_type}, (
            column.name
        )
        assert column.nullable == (f"isNull(`{column.name}`)" in TAG_VIEWS.row_checksum_sql())


def test_checksum_takes_numbers_plain_texts_hashed() -> None:
    """Numbers enter the checksum as they are, texts and UUIDs by their hash."""
    for column in COLUMNS:
        assert (column.kind == "number") == (
            not any(kind in column.file_type for kind in ("String", "UUID"))
        ), column.name


def test_identity_and_order_of_an_event_are_columns() -> None:
    assert {
        "tag",
        "persistence_id",
        "sequence_nr",
        "writer_uuid",
        "tag_pid_sequence_nr",
        "offset",
        "event",
    } <= set(NAMES)


def test_event_text_sql_takes_serializer_ids_only() -> None:
    """Serializer ids make the readable column.

    Anything but an integer is refused before it gets into the SQL.
    """
    assert event_text_sql([4, 9]) == "if(`ser_id` IN (4, 9), `event`, '')"
    with pytest.raises(ValueError, match="invalid literal"):
        event_text_sql(["4) OR 1=1 --"])  # type: ignore[list-item]
