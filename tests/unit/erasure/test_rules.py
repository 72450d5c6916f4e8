"""Whether a text names a persistence id, whatever the text is, and what stands there instead."""

import html
import json

import pytest

from tagmill.erasure.rules import Names, less

ODD = 'it\'s "odd" \\ ünï <b> #17'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("o-1", True),
        ("holds close t o-1 4 to 5", True),
        ("persistence id 'o-1', tag 't'", True),
        ("shop/o-1", True),
        ("o-17", False),
        ("o-1-1", False),
        ("xo-1", False),
        ("", False),
    ],
)
def test_a_name_is_found_where_it_is_no_part_of_a_longer_one(text, named):
    assert Names(["o-1", "p"]).are_in(text) is named
    assert ("(erased)" in Names(["o-1"]).masked(text)) is named


def test_it_is_found_in_documents_and_pages_however_those_escape_it():
    names = Names([ODD])
    assert names.are_in_json(json.dumps({"rows": [{"of": [f"is {ODD!r} held"]}]}))
    assert names.are_in_json(json.dumps({ODD: 1}, ensure_ascii=False))
    assert names.are_in_json(f"half a document {json.dumps(ODD)}")
    assert names.are_in_page(f"<td>{html.escape(ODD)}</td>")
    assert not names.are_in_json("{}") and not names.are_in_page("<td>its odd</td>")


def test_all_of_a_text_but_the_name_stays():
    assert (
        Names(["a b", "a"]).masked("run void of a b, a and 'a'; ab stays")
        == "run void of (erased), (erased) and '(erased)'; ab stays"
    )


def test_a_checksum_without_rows_stays_below_two_to_the_64():
    assert less(5, [2**64 - 1, 3]) == 3
    assert less(2**64 - 1, []) == 2**64 - 1
