"""Which tags there are, as the plugin's Reconciliation tells them: those of the view, or those that a persistence_id was numbered for."""

from typing import Any

from tagmill.settings import Settings
from tagmill.stores.cassandra import Cassandra
from tagmill.stores.guard import check_view
from tagmill.stores.views import Views

OF_VIEW = ("tag", "timebuckets", "first", "last", "delivered")
OF_ID = ("tag", "tag_pid_sequence_nr", "sequence_nr", "offset")


def tags(settings: Settings, pipeline: str, persistence_id: str | None = None) -> list[dict[str, Any]]:
    """OF_VIEW, the buckets in milliseconds, one line a tag; of a persistence_id OF_ID, its last numbers.

    Raises ConfigurationError: there is no such view, or the journal has another one.
    """
    chosen = settings.pipeline(pipeline)
    with Cassandra(settings.cassandra) as cassandra:
        views = Views(cassandra, chosen.journal)
        check_view(cassandra, settings, pipeline)
        views.columns()
        if persistence_id is not None:
            return views.progress_of(persistence_id)
        return [line | {"delivered": line["tag"] in chosen.tags} for line in views.tags()]
