"""Guard materialized views that depend on a destination: an insert that failed in a view never counts as
complete.

ClickHouse keeps the rows of an insert whose view failed, and a retry finds them in the table. Only a record
of the insert's outcome, or a person, can then say whether the views have them (docs/decisions/0031).
"""

from collections.abc import Callable

from tagmill.clickhouse.client import ClickHouse
from tagmill.errors import ConfigurationError, GuardRefused, TagmillError, ViewsUnknown
from tagmill.ledger.runs import BatchRow, Ledger, RunRow
from tagmill.ledger.view_inserts import Outcome, ViewInsert, ViewInserts
from tagmill.runs import checkpoints
from tagmill.runs.operator_action import OperatorAction
from tagmill.runs.sealed_files import Sealed

DESPITE_VIEWS = "--despite-views"


class DependentViews:
    """The materialized views on the table that one run's batches go to."""

    def __init__(self, ledger: Ledger, clickhouse: ClickHouse, manifest: Sealed, table: str) -> None:
        self.ledger, self.manifest = ledger, manifest
        self.where = f"{clickhouse.settings.database}.{table}"
        self.names = ", ".join(clickhouse.dependent_views(table))

    def insert(self, batch: BatchRow, send: Callable[[], bool]) -> bool:
        """Send an insert and record its start and outcome; return False if ClickHouse did not confirm that it
        wrote the rows.

        Without views nothing is recorded.
        """
        if not self.names:
            return send()
        inserts = self._inserts()
        inserts.note(batch, Outcome.BEGUN, self.names)
        try:
            written = send()
        except TagmillError as error:
            inserts.note(batch, Outcome.FAILED, self.names, str(error)[:300])
            raise
        checkpoints.reached("push.before_noted")
        if written:
            inserts.note(batch, Outcome.DONE, self.names)
        return written

    def require_whole(self, batch: BatchRow) -> None:
        """Raise ViewsUnknown if the rows of a batch are in the table and its views may lack them."""
        known = self._known(batch)
        views = self.names or (known.views if known else "")
        if not views or (known and known.is_whole):
            return
        failed = known is not None and known.outcome == Outcome.FAILED
        how = (
            f"ended with an error ({known.error})"
            if known and failed
            else "was not confirmed before its push ended"
        )
        run, pipeline = self.manifest.run, self.manifest.pipeline
        at = f"{batch.batch_id} --run {run} --pipeline {pipeline}"
        raise ViewsUnknown(
            f"batch {batch.batch_id} of run {run}, pipeline {pipeline}: its rows are in {self.where}, "
            f"but the insert {how}. "
            f"These views depend on the table and may lack the batch: {views}. The batch stays NEW, and "
            "nothing more was pushed. "
            f"Either complete the views by hand, then: tagmill batches accept {at} --why …; or take the "
            "batch out and send it again, "
            f"which views that have it count twice: tagmill batches resend {at} {DESPITE_VIEWS} --why …",
            pipeline=pipeline,
            run=run,
            batch=batch.batch_id,
        )

    def _known(self, batch: BatchRow) -> ViewInsert | None:
        try:
            return self._inserts().find(batch)
        except ConfigurationError:
            if self.names:
                raise
            return None  # the ledger has no such table yet, and no view needs it

    def forget(self, batch: BatchRow) -> None:
        """Remove the record of a batch's insert; call it for a verified batch."""
        if self.names:
            self._inserts().forget(batch)

    def _inserts(self) -> ViewInserts:
        return ViewInserts(
            self.ledger.cassandra, self.ledger.ledger_keyspace, self.manifest.pipeline, self.manifest.run
        )


def accept(
    action: OperatorAction,
    ledger: Ledger,
    clickhouse: ClickHouse,
    table: str,
    row: RunRow,
    batch: BatchRow,
) -> str:
    """Record that the views have a NEW batch whose insert was not confirmed; return a sentence that says what
    to do next.

    Raises GuardRefused if the batch is not NEW or not in the table.
    """
    if not clickhouse.totals(table, batch.batch_id) or batch.state != "NEW":
        raise GuardRefused(
            f"batch {batch.batch_id} of run {row.run}, pipeline {row.pipeline}, is {batch.state} and "
            "waits for no decision about views. "
            f"Nothing was changed. Look: tagmill batches --pipeline {row.pipeline}",
            pipeline=row.pipeline,
            run=row.run,
            batch=batch.batch_id,
        )
    said = f"batch {batch.batch_id} of run {row.run}, pipeline {row.pipeline}:"
    inserts = ViewInserts(ledger.cassandra, ledger.ledger_keyspace, row.pipeline, row.run)
    if action.dry_run:
        known = inserts.find(batch)
        views = known.views if known and known.views else ", ".join(clickhouse.dependent_views(table))
        return (
            f"{said} it would be recorded that the views {views or '(none depends on the table)'} have its "
            f"{batch.rows} rows. Nothing would be sent; the next run takes the batch as delivered"
        )
    inserts.accept(batch, action.who, action.why)
    ledger.record_intervention(
        row.pipeline, row.run, action.who, f"batches accept {batch.batch_id}", action.why
    )
    return (
        f"{said} recorded that the views have it. "
        f"Finish the run: tagmill run deliver --pipeline {row.pipeline}"
    )


def require_no_views(clickhouse: ClickHouse, table: str, refused: str, *, despite_views: bool) -> str:
    """Return the names of the views that depend on a table, separated by commas; an empty string if there are
    none.

    Raises GuardRefused if there are views and the operator did not ask to work despite them.
    """
    views = ", ".join(clickhouse.dependent_views(table))
    if views and not despite_views:
        raise GuardRefused(
            f"{refused}: materialized views depend on {clickhouse.settings.database}.{table}: {views}. "
            "They keep what is taken out "
            "of the table, and count twice what is sent again. Nothing was changed. "
            f"Complete the views by hand afterwards, and give {DESPITE_VIEWS} on the command line: a DAG "
            "has no param for it"
        )
    return views


def despite(views: str) -> str:
    """Return the words about views that the record of an operator's action ends with; empty without views."""
    return f" despite the views {views}" if views else ""
