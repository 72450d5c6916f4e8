"""Run Great Expectations over a small frame with one line per subject (a run, a tag, a column); Rules say
what is expected.

Its import takes seconds, so it is imported where it is used; `preload` starts the import while Spark is busy.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import unescape
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tagmill.quality.model import Check, Failing
from tagmill.quality.rules import SUBJECT, Cell, Rule

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult
    from great_expectations.expectations.expectation import Expectation

Lines = Sequence[Mapping[str, Cell]]
# Function from a rule and the places where it failed to a sentence that says why.
Said = Callable[[Rule, Sequence[Failing]], str]


def preload() -> Thread:
    """Import Great Expectations in a background thread.

    The thread need not be joined; an import error shows up in `judged`.
    """
    thread = Thread(target=_import, name="preload-great-expectations", daemon=True)
    thread.start()
    return thread


def judged(
    lines: Lines, wanted: Sequence[Rule], said: Said, *, suite: str, run_name: str
) -> tuple[tuple[Check, ...], str]:
    """Return the result of each rule over these lines, and the Data Docs page that Great Expectations draws
    of it.

    An expectation that crashed judged nothing, so it stops the run whatever its severity.
    """
    validation = _validate(lines, wanted, suite, run_name)
    results = {
        result.expectation_config.meta["check"]: result
        for result in validation.results
        if result.expectation_config
    }
    return tuple(_check(rule, results.get(rule.name), said) for rule in wanted), _rendered(validation)


class _Sparing(MetaPathFinder):
    """What Great Expectations imports for expectations that no rule has; it is half of the import's time."""

    # Modules that are loaded once something in them is used.
    LATER = frozenset({"altair", "scipy.stats"})
    # Package that it goes without: we hand it frames of pandas.
    NEVER = "pyspark.ml"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self.NEVER:
            raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self.LATER else None
        if spec and spec.loader:
            spec.loader = LazyLoader(spec.loader)
        return spec


def _import() -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # before the import: else it reports its use to its makers
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    sys.meta_path.insert(0, sparing := _Sparing())
    try:
        import great_expectations
        import great_expectations.expectations
        import great_expectations.render.renderer.page_renderer
        import great_expectations.render.view.view
    finally:
        sys.meta_path.remove(sparing)
    return great_expectations


def _validate(
    lines: Lines, wanted: Sequence[Rule], suite: str, run_name: str
) -> "ExpectationSuiteValidationResult":
    """Validate the lines in one batch with one suite, since the cost is per validation and not per
    expectation.
    """
    gx = _import()
    import pandas as pd
    from great_expectations.core import RunIdentifier
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("reports").add_dataframe_asset("reports")
    batch = asset.get_batch(asset.build_batch_request({"dataframe": pd.DataFrame(list(lines))}))
    # A validation definition would do the same, and take a sixth longer, to store what it is made of.
    result: ExpectationSuiteValidationResult = batch.validate(
        gx.ExpectationSuite(name=suite, expectations=expectations_of(wanted)),
        result_format={
            "result_format": "COMPLETE",
            "unexpected_index_column_names": [SUBJECT],
            "return_unexpected_index_query": False,
        },
    )
    result.meta["run_id"] = run = RunIdentifier(run_name=run_name)
    result.meta["validation_time"] = run.run_time
    return result


def expectations_of(wanted: Sequence[Rule]) -> "list[Expectation]":
    """Return Great Expectations' objects for the rules."""
    from great_expectations.expectations.core.expect_column_pair_values_to_be_equal import (
        ExpectColumnPairValuesToBeEqual,
    )
    from great_expectations.expectations.core.expect_column_values_to_be_between import (
        ExpectColumnValuesToBeBetween,
    )
    from great_expectations.expectations.metadata_types import FailureSeverity

    severity = {"stop": FailureSeverity.CRITICAL, "warn": FailureSeverity.WARNING}

    def expectation(rule: Rule) -> "Expectation":
        common: Any = {
            "description": rule.description,
            "severity": severity[rule.severity],
            "meta": {"check": rule.name},
        }
        if rule.equals:
            return ExpectColumnPairValuesToBeEqual(
                column_A=rule.column, column_B=rule.equals, ignore_row_if="both_values_are_missing", **common
            )
        return ExpectColumnValuesToBeBetween(
            column=rule.column, min_value=rule.at_least, max_value=rule.at_most, **common
        )

    return [expectation(rule) for rule in wanted]


def _check(rule: Rule, result: "ExpectationValidationResult | None", said: Said) -> Check:
    crash = "it gave no result" if result is None else _crash(result)
    if result is None or crash:
        text = f"the check '{rule.description}' could not be made: {crash}"
        return Check(rule.name, rule.description, "stop", False, True, (), text)
    success = bool(result.success)
    failing = () if success else _failing(result, rule.column)
    return Check(
        rule.name,
        rule.description,
        rule.severity,
        success,
        False,
        failing,
        "" if success else said(rule, failing),
    )


def _crash(result: "ExpectationValidationResult") -> str | None:
    """Return the message of an expectation that crashed, or None.

    Only exception_info shows a crash; it is one dict, or one per metric.
    """
    info = result.exception_info or {}
    for found in (info, *info.values()):
        if isinstance(found, dict) and found.get("raised_exception"):
            return str(found.get("exception_message") or "no message")
    return None


def _failing(result: "ExpectationValidationResult", column: str) -> tuple[Failing, ...]:
    found = result.result.get("unexpected_index_list") or []
    return tuple(Failing(unescape(line[SUBJECT]), _plain(line.get(column))) for line in found)


def _plain(value: Any) -> float | str | None:
    """Return a number or text of numpy or pandas as Python's own type."""
    return value if value is None or isinstance(value, str) else float(value)


def _rendered(validation: "ExpectationSuiteValidationResult") -> str:
    """Return the Data Docs page of the validation, as Great Expectations draws it."""
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer

    return str(_view().render(ValidationResultsPageRenderer(run_info_at_end=True).render(validation)))


@cache
def _view() -> Any:
    """Return Great Expectations' view (untyped), which compiles its templates once."""
    from great_expectations.render.view.view import DefaultJinjaPageView

    return DefaultJinjaPageView()
