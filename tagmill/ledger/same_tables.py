"""Compare the tables that a pipeline reads with those that it first read: tables created again may hold another
life of the journal.
"""

from collections.abc import Sequence

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.errors import JournalRecreated
from tagmill.ledger.journal_tables import JournalTableIds

# What numbers a journal goes on where it left, under whichever pipeline: its tables are known under this name,
# which no pipeline has.
NUMBERED = "/numbered"


def require_same_tables(
    settings: Settings,
    cassandra: Cassandra,
    pipeline: str,
    untouched: str = "Nothing was planned",
    *,
    adopt: bool = False,
) -> None:
    """Raise JournalRecreated if a table of the pipeline's journal was created again since the pipeline first read
    it, or since Tagmill first numbered it.

    `untouched` says in the message what was left undone. With `adopt`, the journal is numbered from what its
    tables say, whatever was numbered before.
    """
    if changed := changed_tables(settings, cassandra, pipeline, adopt=adopt):
        chosen = settings.pipeline(pipeline)
        raise another_life(
            pipeline,
            created_again(changed, chosen.keyspace),
            untouched,
            also=f" If Tagmill numbered the earlier one, create {chosen.view_table}, tag_write_progress and "
            f"tag_scanning again as well, and begin with: tagmill views build --pipeline {pipeline} --adopt."
            if chosen.views == "tagmill"
            else "",
        )


def changed_tables(
    settings: Settings, cassandra: Cassandra, pipeline: str, *, adopt: bool = False
) -> list[str]:
    """Return the names of the pipeline's journal tables that were created again.

    Unless `adopt` is set, also those created again since Tagmill first numbered the journal, if the pipeline
    is the one that does.
    """
    known, tables = _table_ids(settings, cassandra, pipeline), _tables(settings, pipeline)
    changed = known.changed(pipeline, tables)
    if settings.pipeline(pipeline).views == "tagmill" and not adopt:
        numbered = changed_since_numbered(settings, cassandra, pipeline)
        changed += [name for name in numbered if name not in changed]
    return changed


def changed_since_numbered(settings: Settings, cassandra: Cassandra, pipeline: str) -> list[str]:
    """Return the names of the pipeline's journal tables that were created again since Tagmill first numbered the
    journal.
    """
    return _table_ids(settings, cassandra, pipeline).changed(NUMBERED, _tables(settings, pipeline))


def note_tables(settings: Settings, cassandra: Cassandra, pipeline: str) -> None:
    """Note the ids of the journal's tables that the pipeline reads for the first time."""
    _table_ids(settings, cassandra, pipeline).note(pipeline, _tables(settings, pipeline))


def note_numbered(settings: Settings, cassandra: Cassandra, pipeline: str, *, adopt: bool = False) -> None:
    """Note the ids of the journal's tables that are numbered for the first time; with `adopt`, of all that
    there are now.
    """
    known, tables = _table_ids(settings, cassandra, pipeline), _tables(settings, pipeline)
    if adopt:
        known.accept(NUMBERED, tables)
    else:
        known.note(NUMBERED, tables)


def accept_tables(settings: Settings, cassandra: Cassandra, pipeline: str) -> None:
    """Note that the present tables of the journal hold the events that were delivered or numbered."""
    known, tables = _table_ids(settings, cassandra, pipeline), _tables(settings, pipeline)
    known.accept(pipeline, tables)
    if settings.pipeline(pipeline).views == "tagmill":
        known.accept(NUMBERED, tables)


def created_again(tables: Sequence[str], journal: str) -> str:
    """Return what is said of tables that were created again."""
    return f"{' and '.join(tables)} of journal {journal} was created again"


def another_life(
    pipeline: str, change: str, untouched: str, of: str = "numbers", also: str = ""
) -> JournalRecreated:
    """Return the refusal to read a journal that may be another one under the same name.

    `change` says what happened to it, `of` is what may count from the beginning again, `also` what a new life
    needs besides.
    """
    return JournalRecreated(
        f"pipeline {pipeline}: {change} since its events were read, so its {of} may be of another life. "
        f"{untouched}. A new life: deliver it under another pipeline name and destination.{also} "
        f"The same events (a backup): tagmill ledger accept-journal --pipeline {pipeline} --why …",
        pipeline=pipeline,
    )


def accepted(pipeline: str, journal: str) -> str:
    """Return what is said of a journal whose tables were accepted."""
    return (
        f"pipeline {pipeline}: the tables of journal {journal} are accepted; the next run goes on with them"
    )


def would_accept(pipeline: str, journal: str, changes: Sequence[str]) -> str:
    """Return what is said of a journal whose tables would be accepted; `changes` were created again."""
    changed = f"; created again: {', '.join(changes)}" if changes else ", none of which was created again"
    return (
        f"pipeline {pipeline}: the tables of journal {journal} would be accepted{changed}. Progress, holds and "
        "ClickHouse stay as they are"
    )


def first_abandon(pipeline: str) -> str:
    """Return what a seal leaves undone, and what comes before a person accepts the tables."""
    return f"Nothing was sealed. First: tagmill run abandon --pipeline {pipeline} --why …"


def _table_ids(settings: Settings, cassandra: Cassandra, pipeline: str) -> JournalTableIds:
    return JournalTableIds(
        cassandra, settings.cassandra.ledger_keyspace, settings.pipeline(pipeline).keyspace
    )


def _tables(settings: Settings, pipeline: str) -> tuple[str, str]:
    chosen = settings.pipeline(pipeline)
    return chosen.view_table, chosen.journal.messages
