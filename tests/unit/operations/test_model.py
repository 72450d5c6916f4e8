"""What declarations of operations accept, and what they say to a wrong value."""

from datetime import date
from typing import Any

import pytest

from tagmill.errors import ConfigurationError
from tagmill.operations.catalogue import BY_NAME
from tagmill.operations.deletion import CleanParameters, EraseParameters
from tagmill.operations.kafka_journal import PurgeParameters
from tagmill.operations.model import Parameters
from tagmill.operations.views import (
    MigrateParameters,
    RebucketParameters,
    SelectionParameters,
    TruncateParameters,
)
from tagmill.views.model import Step
from tagmill.views.selection import Selection


@pytest.mark.parametrize("name", BY_NAME)
def test_parameters_have_title_and_sentences(name: str) -> None:
    """A form shows the title, the command line and the form the description."""
    for field in BY_NAME[name].parameters.model_fields.values():
        assert field.title and field.description and field.description.endswith(".")


def test_emptied_fields_are_defaults() -> None:
    """A form sends null or an empty text for a field that was emptied."""
    given = {"steps": None, "persistence_ids": None, "snapshot_keyspace": "", "drop_old": True}
    parameters = MigrateParameters.of(given)
    assert parameters == MigrateParameters(drop_old=True)
    assert parameters.plan(dry_run=True).steps == tuple(Step)
    assert PurgeParameters.of({"until": "2026-12-31"}).until == date(2026, 12, 31)


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (PurgeParameters, {"until": "2026-02-30"}, "until: .*day value is outside"),
        (RebucketParameters, {}, "set bucket_size to one of Day, Hour, Minute"),
        (RebucketParameters, {"bucket_size": "Week"}, "bucket_size: .*'Day', 'Hour' or 'Minute'"),
        (SelectionParameters, {"persistence_ids": ["a\0b"]}, "persistence_ids: .*match pattern"),
        (SelectionParameters, {"persistence_ids": [""]}, "persistence_ids: .*at least 1 character"),
        (CleanParameters, {"to": 0}, "to: .*greater than or equal to 1"),
        (SelectionParameters, {"tag": ["t"]}, "tag: Extra inputs are not permitted"),
    ],
)
def test_wrong_value_is_one_line(model: type[Parameters], given: dict[str, Any], words: str) -> None:
    """A value that can't be is told by its name; the value itself is not shown."""
    with pytest.raises(ConfigurationError, match=f"^{words}.*Nothing was changed$"):
        model.of(given)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (SelectionParameters(), "name persistence ids"),
        (SelectionParameters(persistence_ids=["a"], offline=True), "one of the two"),
        (TruncateParameters(), "must be stopped"),
        (MigrateParameters(drop_old=True, persistence_ids=["a"]), "concerns all persistence ids"),
        (RebucketParameters(bucket_size="Day", offline=True, drop_old=True), "steps of their own"),
        (CleanParameters(to=5), "name persistence_ids, or a file"),
        (CleanParameters(persistence_ids=["a"]), "a sequence_nr to delete to is missing"),
        (EraseParameters(persistence_ids=["a"]), "why is empty; give --why"),
    ],
)
def test_check_refuses_contradictions(parameters: Parameters, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{words}.*Nothing was (changed|deleted)$"):
        parameters.check(dry_run=False)


def test_selection_has_ids_and_tags() -> None:
    parameters = SelectionParameters(persistence_ids=["a", "b"], tags=["t"])
    assert parameters.selection() == Selection(("a", "b"), ("t",))
    EraseParameters(persistence_ids=["a"]).check(
        dry_run=True
    )  # a dry run records nothing, so it needs no reason
