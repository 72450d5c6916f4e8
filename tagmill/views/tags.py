"""List tags as the plugin's Reconciliation does: those of the view, or those for which a persistence_id was
numbered.
"""

from typing import Any

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.errors import ConfigurationError, about_pipeline
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger.preconditions import check_view

OF_VIEW = ("tag", "timebuckets", "first", "last", "delivered")
OF_ID = ("tag", "tag_pid_sequence_nr", "sequence_nr", "offset")


@about_pipeline
def tags(settings: Settings, pipeline: str, persistence_id: str | None = None) -> list[dict[str, Any]]:
    """List the tags of a pipeline's view, or with a persistence_id, its last number for each tag.

    Returns one dictionary a tag: OF_VIEW, with the buckets in milliseconds, or OF_ID. Raises
    ConfigurationError: the view does not exist, the journal has another one, or it knows nothing of the
    persistence_id.
    """
    chosen = settings.pipeline(pipeline)
    with Cassandra(settings.cassandra) as cassandra:
        views = Views(cassandra, chosen.journal)
        check_view(cassandra, settings, pipeline)
        views.columns()
        if persistence_id is not None:
            lines = views.progress_of(persistence_id)
            if not lines and not views.has_events(persistence_id):
                raise ConfigurationError(
                    f"journal {chosen.keyspace} has neither events of persistence_id {persistence_id!r} "
                    "nor progress. Nothing was changed; "
                    "is it written as in the column persistence_id?"
                )
            return lines
        return [line | {"delivered": line["tag"] in chosen.tags} for line in views.tags()]
