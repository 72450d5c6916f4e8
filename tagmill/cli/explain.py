"""`tagmill explain`: what the next run of a pipeline would do."""

from typing import TYPE_CHECKING

import typer

from tagmill.cli.shared import AsJson, Pipeline, err, one_line_errors, out, settings, show

if TYPE_CHECKING:
    from tagmill.config.settings import Settings
    from tagmill.domain.explanation import Explanation


@one_line_errors
def explain(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """Explain what the next run of a pipeline would read, hold and push.

    Asks the ledger and the stores for counts, as a plan does. Writes nothing, and starts no Spark.

    Exit status: 3 when the next run would stop.
    """
    found = _explained(settings(), pipeline)
    if as_json:
        print(found.model_dump_json())
    else:
        for sentence in found.sentences:
            out.print(sentence)
        if found.reads:
            columns = ["source", "begin", "end", "new"]
            columns += [name for name in ("again", "held") if any(getattr(one, name) for one in found.reads)]
            show([one.model_dump() for one in found.reads], columns, as_json=False)
        for stop in found.stops:
            err.print(f"would stop: {stop}")
    if found.stops:
        raise typer.Exit(3)


def _explained(configured: "Settings", pipeline: str) -> "Explanation":
    if pipeline in configured.kafka_journals:
        from tagmill.kafka_journal import explain as of_replication

        return of_replication.explain(configured, pipeline)
    if pipeline in configured.streams:
        from tagmill.delivery.topics import explain as of_topic

        return of_topic.explain(configured, pipeline)
    from tagmill.delivery.tag_views import explain as of_views

    return of_views.explain(configured, pipeline)
