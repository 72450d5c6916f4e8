"""What a person may ask of a migration."""

import pytest

pytest.importorskip("pyspark")

from tagmill.errors import ConfigurationError
from tagmill.views.migration_plan import Plan
from tagmill.views.model import Step
from tagmill.views.selection import Selection

SAFE = (Step.TABLES, Step.TAGS_COLUMN, Step.COLUMNS, Step.PIDS)


def test_plan_includes_tags_once_writers_excluded():
    """Tags are among the steps once ids or offline say which applications do not write, and in dry runs."""
    assert Plan.of() == Plan(SAFE)
    assert Plan.of(offline=True) == Plan((*SAFE, Step.TAGS), Selection())
    assert Plan.of(persistence_ids=["a"]) == Plan((*SAFE, Step.TAGS), Selection(("a",)))
    assert Plan.of(dry_run=True) == Plan((*SAFE, Step.TAGS))


def test_plan_orders_steps_and_needs_spark():
    """Steps come in their own order, and only those that look at rows need Spark."""
    plan = Plan.of(["columns", "tables"])
    assert plan.steps == (Step.TABLES, Step.COLUMNS) and not plan.needs_spark
    assert all(Plan.of([step], offline=True).needs_spark for step in ("pids", "tags"))
    assert Plan.of(["tables"], offline=True, drop_old=True).needs_spark


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": ["tags"]}, "name persistence ids that nobody writes to"),
        ({"drop_old": True}, "name persistence ids that nobody writes to"),
        ({"persistence_ids": ["a"], "offline": True}, "one of the two"),
        ({"persistence_ids": ["a"], "drop_old": True}, "concerns all persistence ids"),
    ],
)
def test_what_could_lose_something_is_refused(options, words):
    """Refuse plans that could lose rows because an application may write meanwhile, and plans that contradict
    themselves.
    """
    with pytest.raises(ConfigurationError, match=words):
        Plan.of(**options)
