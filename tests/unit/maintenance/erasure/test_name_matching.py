"""Whether a text of any form names a persistence_id, and what replaces the name there."""

import html
import json

import pytest

from tagmill.domain.identifiers import quoted, shortened
from tagmill.maintenance.erasure.name_matching import ErasedNames, less

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
def test_names_are_found_only_as_whole(text, named):
    """Names are found and masked unless they are part of a longer name."""
    assert ErasedNames(["o-1", "p"]).are_in(text) is named
    assert ("(erased)" in ErasedNames(["o-1"]).masked(text)) is named


def test_names_are_found_however_escaped():
    """Names are found in JSON and HTML however these escape them, also in half a document."""
    names = ErasedNames([ODD])
    assert names.are_in_json(json.dumps({"rows": [{"of": [f"is {ODD!r} held"]}]}))
    assert names.are_in_json(json.dumps({ODD: 1}, ensure_ascii=False))
    assert names.are_in_json(f"--params\n{json.dumps(json.dumps({'of': ODD}))}\n17\n")
    assert names.are_in_json(f"half a document {json.dumps(ODD)}")
    assert names.are_in_page(f"<td>{html.escape(ODD)}</td>")
    assert not names.are_in_json("{}") and not names.are_in_page("<td>its odd</td>")


def test_all_of_a_text_but_the_name_stays():
    """Mask names only; the text around them stays."""
    assert (
        ErasedNames(["a b", "a"]).masked("run void of a b, a and 'a'; ab stays")
        == "run void of (erased), (erased) and '(erased)'; ab stays"
    )


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (shortened("set apart: kept-1, customer-17, x", 27), "set apart: kept-1, (erased)…"),
        (quoted(["customer-17" * 4]), "'(erased)'…"),
        (f"{'x' * 392} customer-17"[:400], f"{'x' * 392} (erased)"),
        ("a custom", "a custom"),
        ("cus…", "cus…"),
        ("xcusto…", "xcusto…"),
    ],
    ids=["marked", "quoted", "unmarked", "not cut", "too short", "other name"],
)
def test_names_are_masked_where_text_was_cut(text, masked):
    """Mask what is left of a name at the place where a text was cut off; a file with such a mark names it."""
    names = ErasedNames(["customer-17", "customer-17" * 4])
    assert names.masked(text) == masked
    assert names.are_in_json(text) is ("…" in text and text != masked)


def test_less_wraps_at_two_to_64():
    """Checksums from which rows are taken away wrap around at 2^64."""
    assert less(5, [2**64 - 1, 3]) == 3
    assert less(2**64 - 1, []) == 2**64 - 1
