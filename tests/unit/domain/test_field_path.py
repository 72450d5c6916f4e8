"""Paths of fields: names with dots between them, in quotes where a name has a dot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tagmill.config.kafka import FieldPath
from tagmill.delivery.topics.fields import finder
from tagmill.domain.field_path import join, split


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a", ["a"]), ("a.b", ["a", "b"]), ('"service.name"', ["service.name"]), ('a."b.c".d', ["a", "b.c", "d"]),
        (r'"a\"b\\c"', ['a"b\\c']), ("a b.ü", ["a b", "ü"]), ('a"b', ['a"b']), ('""', [""]),
    ],
)  # fmt: skip
def test_path_has_these_names(path, names):
    assert split(path) == names and split(join(names)) == names


@given(st.lists(st.text(), min_size=1))
def test_names_come_back_from_their_path(names):
    assert split(join(names)) == names


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "a name is missing at character 1"), ("a..b", "a name is missing at character 3"), ("a.", "a name is missing at character 3"),
        ('"a', "a quote is left open at character 1"), ('"a"b', "a dot is missing at character 4"), (r'"a\n"', "a quote is left open"),
    ],
)  # fmt: skip
def test_wrong_path_is_refused_in_one_line(path, why):
    with pytest.raises(ValidationError) as error:
        TypeAdapter(FieldPath).validate_python(path)
    [message] = [one["msg"] for one in error.value.errors()]
    assert why in message and "\n" not in message


def test_needless_quotes_make_no_other_rule():
    assert TypeAdapter(FieldPath).validate_python('"a"."b.c"') == 'a."b.c"'


def test_field_with_dots_in_its_name_is_found():
    assert (
        finder('"service.name".x')({"service.name": {"x": 1}}) == 1
        and finder("service.name")({"service.name": 1}) is None
    )
