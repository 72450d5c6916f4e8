"""The gate: Great Expectations judges the small reports of a run and says whether it may be sealed.

Great Expectations takes seconds to import, so it is imported where it is used; `preload` does it while Spark is busy.
"""

import logging
import os
from html import unescape
from threading import Thread
from typing import TYPE_CHECKING, Any

from tagmill.quality import docs
from tagmill.quality.model import Check, Failing, GateVerdict, Reports, as_json
from tagmill.quality.rules import FOUND, REQUIRED, SCHEMA, SUBJECT, Rule, frame, rules, schema_sentence, sentence
from tagmill.settings import QualitySettings

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult
    from great_expectations.expectations.expectation import Expectation

_SCHEMA_DESCRIPTION = "The view has the columns and types that a run reads"


def preload() -> Thread:
    """Import Great Expectations in a background thread; nobody has to join it, and an import error shows up in `judge`."""
    thread = Thread(target=_import, name="preload-great-expectations", daemon=True)
    thread.start()
    return thread


def judge(reports: Reports, limits: QualitySettings, *, docs_dir: str, run_name: str) -> GateVerdict:
    """Judge a run's reports and write its page.

    Args:
        reports: what `report.read_reports` counted.
        limits: what is tolerated.
        docs_dir: folder or URL of the pipeline's pages; this run's are below `docs_dir/run_name`, those of earlier runs stay.
        run_name: for example run-00000007; the same name again replaces the page.

    Returns:
        The verdict. An expectation that crashed judged nothing, so it stops the run whatever its severity.
    """
    wanted = rules(reports, limits)
    validation = _validate(reports, wanted, run_name)
    by_name = {rule.name: rule for rule in wanted}
    results = {result.expectation_config.meta["check"]: result for result in validation.results if result.expectation_config}
    checks = tuple(_check(name, results.get(name), by_name.get(name), reports) for name in (SCHEMA, *by_name))
    failed = [check for check in checks if not check.success]
    stops = [check.sentence for check in failed if check.severity == "stop"]
    warnings = [check.sentence for check in failed if check.severity == "warn"]
    severity = docs.worst(checks)
    page = docs.write(docs_dir, run_name, reports, checks, _rendered(validation))
    return GateVerdict(not stops, severity, stops, warnings, page, as_json(checks))


def _import() -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # before the import: else it reports its use to its makers
    import great_expectations
    import great_expectations.expectations
    import great_expectations.render.renderer.page_renderer
    import great_expectations.render.view.view

    return great_expectations


def _validate(reports: Reports, wanted: tuple[Rule, ...], run_name: str) -> "ExpectationSuiteValidationResult":
    """One batch, one suite, one validation: its cost is per validation, not per expectation."""
    gx = _import()
    import pandas as pd
    from great_expectations.core import RunIdentifier
    from great_expectations.data_context.types.base import ProgressBarsConfig

    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("reports").add_dataframe_asset("reports")
    suite = context.suites.add(gx.ExpectationSuite(name="tag_views", expectations=_expectations(wanted)))
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name="gate", data=asset.add_batch_definition_whole_dataframe("run"), suite=suite)
    )
    result: ExpectationSuiteValidationResult = definition.run(
        batch_parameters={"dataframe": pd.DataFrame(frame(reports))},
        result_format={
            "result_format": "COMPLETE",
            "unexpected_index_column_names": [SUBJECT],
            "return_unexpected_index_query": False,
        },
        run_id=RunIdentifier(run_name=run_name),
    )
    return result


def _expectations(wanted: tuple[Rule, ...]) -> "list[Expectation]":
    from great_expectations.expectations.core.expect_column_pair_values_to_be_equal import ExpectColumnPairValuesToBeEqual
    from great_expectations.expectations.core.expect_column_values_to_be_between import ExpectColumnValuesToBeBetween
    from great_expectations.expectations.metadata_types import FailureSeverity

    severity = {"stop": FailureSeverity.CRITICAL, "warn": FailureSeverity.WARNING}
    schema = ExpectColumnPairValuesToBeEqual(
        column_A=FOUND, column_B=REQUIRED, ignore_row_if="both_values_are_missing",
        description=_SCHEMA_DESCRIPTION, severity=severity["stop"], meta={"check": SCHEMA},
    )  # fmt: skip
    bounds = [
        ExpectColumnValuesToBeBetween(
            column=rule.column, min_value=rule.at_least, max_value=rule.at_most,
            description=rule.description, severity=severity[rule.severity], meta={"check": rule.name},
        )
        for rule in wanted
    ]  # fmt: skip
    return [schema, *bounds]


def _check(name: str, result: "ExpectationValidationResult | None", rule: Rule | None, reports: Reports) -> Check:
    description = rule.description if rule else _SCHEMA_DESCRIPTION
    crash = "it gave no result" if result is None else _crash(result)
    if result is None or crash:
        return Check(name, description, "stop", False, True, (), f"the check '{description}' could not be made: {crash}")
    success = bool(result.success)
    failing = () if success else _failing(result, rule)
    text = "" if success else sentence(rule, failing, reports) if rule else schema_sentence(failing, reports)
    return Check(name, description, rule.severity if rule else "stop", success, False, failing, text)


def _crash(result: "ExpectationValidationResult") -> str | None:
    """An expectation that crashed says so here only; the information is one dict, or one a metric."""
    info = result.exception_info or {}
    for found in (info, *info.values()):
        if isinstance(found, dict) and found.get("raised_exception"):
            return str(found.get("exception_message") or "no message")
    return None


def _failing(result: "ExpectationValidationResult", rule: Rule | None) -> tuple[Failing, ...]:
    column = rule.column if rule else FOUND
    found = result.result.get("unexpected_index_list") or []
    return tuple(Failing(unescape(line[SUBJECT]), _plain(line.get(column))) for line in found)


def _plain(value: Any) -> float | str | None:
    """A number or text of numpy or pandas as Python's own."""
    return value if value is None or isinstance(value, str) else float(value)


def _rendered(validation: "ExpectationSuiteValidationResult") -> str:
    """The Data Docs page of the validation, as Great Expectations draws it."""
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view.view import DefaultJinjaPageView

    view: Any = DefaultJinjaPageView()  # untyped
    return str(view.render(ValidationResultsPageRenderer(run_info_at_end=True).render(validation)))
