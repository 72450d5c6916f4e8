"""Find out how far a journal's rebucket is before anything is done, and refuse at once what can't be done."""

from dataclasses import dataclass

from tagmill.config.settings import Settings
from tagmill.domain import identifiers
from tagmill.domain.journal_tables import WRITERS_TABLES, JournalTables
from tagmill.domain.time_buckets import BucketSize, View
from tagmill.errors import ConfigurationError, GuardRefused, ViewDiffers
from tagmill.ledger.view_tables import JournalViews, ViewTableState
from tagmill.views.rebucket.tables import ViewTables, default_name


@dataclass(frozen=True, slots=True)
class Situation:
    """How far a rebucket is.

    `is_switched`: the view in force is `target`, copied from `source`; else it is `source`.

    `is_begun`: the ledger knows that `target` is being filled.
    """

    source: View
    target: View
    is_switched: bool
    is_begun: bool


def look(
    settings: Settings, name: str, views: JournalViews, tables: ViewTables, to: BucketSize, table: str | None
) -> Situation:
    """Return the situation of a pipeline's journal; raises GuardRefused, ConfigurationError when a rebucket
    to `to` is not possible.
    """
    standing = views.standing()
    now = standing.view if standing else settings.pipeline(name).view
    if now.size == to:
        return _switched(standing, now, views.journal)
    filling = standing.filling if standing else None
    target = View(table or (filling.table if filling and filling.size == to else default_name(to)), to)
    require_configured_view(settings, views, now)
    _must_be_new(target.table, now, settings.pipeline(name).journal)
    _must_fit(target, standing, views.journal)
    if filling and filling != target:
        size = filling.size.value
        raise GuardRefused(
            f"journal {views.journal}: a rebucket into {filling} is under way. Nothing was done; go on "
            f"with it (--to {size}), or "
            f"give it up: tagmill views rebucket --pipeline {name} --to {size} --abandon",
            pipeline=name,
        )
    tables.check_source(now.table)
    if not filling:
        tables.check_free(target.table)
    return Situation(now, target, is_switched=False, is_begun=filling is not None)


def require_configured_view(settings: Settings, views: JournalViews, now: View) -> None:
    """Raise ConfigurationError unless the configuration of every pipeline on the journal says that its view
    is `now`.
    """
    for name in settings.on_journal(views.journal):
        views.check(name, settings.pipeline(name).view)
        if (other := settings.pipeline(name).view) != now:
            raise ViewDiffers(
                f"pipelines.{name}: journal {views.journal} has its view in {now} for another pipeline, "
                f"and in {other} for this one. "
                "Nothing was done; correct the configuration first",
                pipeline=name,
            )


def _must_be_new(table: str, now: View, journal: JournalTables) -> None:
    """Raise ConfigurationError unless a new table may have this name: a lower-case identifier that no table
    in use has.
    """
    if table != table.lower():
        raise ConfigurationError(
            f"--table {table}: the plugin doesn't quote the name, so it has to be in lower case"
        )
    try:
        identifiers.identifier(table)
    except ValueError as error:
        raise ConfigurationError(f"--table: {error}. Nothing was done") from None
    if table in (now.table, journal.messages, journal.metadata, journal.all_persistence_ids, *WRITERS_TABLES):
        raise ConfigurationError(
            f"--table {table}: that is a table of the journal in use. Nothing was done; choose another name"
        )


def _must_fit(target: View, standing: ViewTableState | None, journal: str) -> None:
    """Raise ConfigurationError when the journal's view once was in a table of the target's name with buckets
    of another size.
    """
    known = standing.tables.get(target.table) if standing else None
    if known and known.was_in_force and known.view.size != target.size:
        raise ConfigurationError(
            f"--table {target.table}: journal {journal} had its view in a table of this name with "
            "buckets of the size "
            f"{known.view.size.value}, and the ledger knows what was cleaned and read of them. Nothing "
            "was done; choose another name"
        )


def _switched(standing: ViewTableState | None, now: View, journal: str) -> Situation:
    before = standing.tables[now.table].source if standing else None
    if standing is None or before is None:
        raise GuardRefused(
            f"journal {journal}: its view has buckets of the size {now.size.value} already. Nothing was done"
        )
    return Situation(standing.tables[before].view, now, is_switched=True, is_begun=False)
