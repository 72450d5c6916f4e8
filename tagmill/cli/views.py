"""`tagmill views`: the tag views that Tagmill keeps itself."""

import json
import time
from typing import Annotated

import typer

from tagmill.cli.shared import AsJson, Pipeline, one_line_errors, out, settings, show, telling

app = typer.Typer(help="Tag views of a journal whose application has events-by-tag off.", no_args_is_help=True)


@app.callback()
def views() -> None:
    """Build them."""


@app.command()
@one_line_errors
def build(
    pipeline: Pipeline,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Take the numbers that an application has written as the start; it must not number any more."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Number the new events of the pipeline's journal and write tag_views. Safe to stop and to start again at any moment."""
    from tagmill.sparksession import spark_session
    from tagmill.stores.lease import this_process
    from tagmill.views.build import build as build_views
    from tagmill.views.build import check

    configured, begun = settings(), time.monotonic()
    check(configured, pipeline)
    with telling(pipeline, "starting Spark") as tell, spark_session(configured, f"tagmill build {pipeline}") as spark:
        built = build_views(configured, pipeline, owner=this_process(), spark=spark, adopt=adopt, tell=tell)
    built["seconds"] = round(time.monotonic() - begun, 1)
    if as_json:
        print(json.dumps(built, default=str))
        return
    out.print(built["message"], markup=False)
    if built["before_first_time_bucket"]:
        out.print(
            f"{built['before_first_time_bucket']} rows are older than first_time_bucket: readers don't look there", markup=False
        )
    if built["examples"]:
        show(
            built["examples"], ("persistence_id", "sequence_nr", "what"), as_json=False, title="These wait in front of an event:"
        )
