"""Judge the small reports of a run with Great Expectations, and say whether the run may be sealed."""

from collections.abc import Sequence
from dataclasses import asdict

from tagmill.config.tag_views import QualitySettings
from tagmill.quality import docs
from tagmill.quality.expectations import judged
from tagmill.quality.model import Failing, GateVerdict, Reports, as_json
from tagmill.quality.rules import Rule, frame, rules, sentence


def judge(reports: Reports, limits: QualitySettings, *, docs_dir: str, run_name: str) -> GateVerdict:
    """Judge a run's reports and write its page.

    Args:
        reports: what `report.read_reports` counted.
        limits: what is tolerated.
        docs_dir: folder or URL of the pipeline's pages; this run's are below `docs_dir/run_name`, those of
            earlier runs stay.
        run_name: for example run-00000007; the same name again replaces the page.

    Returns:
        The verdict. An expectation that crashed judged nothing, so it stops the run whatever its severity.
    """

    def said(rule: Rule, failing: Sequence[Failing]) -> str:
        return sentence(rule, failing, reports)

    checks, expectations = judged(
        frame(reports, limits), rules(reports, limits), said, suite="tag_views", run_name=run_name
    )
    failed = [check for check in checks if not check.success]
    stops = {check.name: check.sentence for check in failed if check.severity == "stop"}
    warnings = [check.sentence for check in failed if check.severity == "warn"]
    figures = {"rows": reports.rows, "held": reports.held}
    shown = docs.Page("run.html.j2", {"reports": reports}, figures, {"reports": asdict(reports)})
    page = docs.write(docs_dir, run_name, shown, checks, expectations)
    return GateVerdict(
        not stops, docs.worst(checks), list(stops.values()), warnings, page, as_json(checks), tuple(stops)
    )
