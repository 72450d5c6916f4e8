"""Checks with the ledger, and the other readers, whether a persistence id's events and view rows may be
deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tagmill.domain import identifiers
from tagmill.domain.timeuuid import ticks
from tagmill.journal.event_store import Event, JournalStore, now_in_microseconds
from tagmill.ledger.view_builds import Builds
from tagmill.maintenance.journal_cleanup.model import FORCE_UNDELIVERED, FORCE_UNREAD, Refused, Wanted
from tagmill.maintenance.journal_cleanup.rules import Delivered
from tagmill.maintenance.view_cleanup import readers
from tagmill.maintenance.view_cleanup import rules as cleanup_rules
from tagmill.maintenance.view_cleanup.rules import Bucket, ReadTo
from tagmill.maintenance.view_cleanup.view import delivered, standing
from tagmill.runs.workspace import Workspace

UNTOUCHED = "Its events, snapshots and view rows were left untouched"


@dataclass(slots=True)
class Seen:
    """What is to be deleted of one persistence id.

    events, view_rows: their numbers. written: the newest write of an event (microseconds since 1970).
    last_tagged: the highest event with a tag. newest: by tag the newest event (ticks). delivered: by tag the
    delivery state in each pipeline.
    """

    events: int = 0
    written: int = 0
    view_rows: int = 0
    last_tagged: Event | None = None
    newest: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, list[Delivered]] = field(default_factory=dict)


class Guards:
    """Guards of all configured pipelines on one journal; `name` is the pipeline that cleans.

    Safe to call from several threads.
    """

    def __init__(self, workspace: Workspace, store: JournalStore, wanted: Wanted) -> None:
        self.settings, self.ledger, self.name = workspace.settings, workspace.ledger, workspace.name
        self.store, self.wanted, self.pipeline = store, wanted, workspace.pipeline
        self.pipelines = self.settings.on_journal(self.pipeline.keyspace)
        built = self.settings.builder(self.pipeline.keyspace) is not None
        self.builds = workspace.journal_store(Builds) if built else None
        self.standings = {one: standing(workspace.of(one)) for one in self.pipelines} if wanted.views else {}
        self.readers: dict[str, Sequence[ReadTo] | None] = {}

    def look(self, persistence_id: str, partitions: list[int], to: int) -> Seen:
        """Read the events up to sequence_nr `to`, page by page, the highest first, and collect what the
        guards need.
        """
        seen = Seen()
        if to < 1:
            return seen
        for event in self.store.events(persistence_id, partitions, to):
            seen.events += 1
            seen.written = max(seen.written, event.written)
            at = ticks(event.timestamp)
            if event.tags and seen.last_tagged is None:
                seen.last_tagged = event
            for tag in event.tags:
                seen.view_rows += self.wanted.views
                seen.newest[tag] = max(at, seen.newest.get(tag, at))
                if tag not in seen.delivered:
                    seen.delivered[tag] = self._delivered(persistence_id, tag, partitions, event)
                for one in seen.delivered[tag]:
                    one.shown(event.sequence_nr, at)
        return seen

    def refused(self, persistence_id: str, seen: Seen) -> Refused | None:
        """Return the refusal of the first guard that objects, or None if the persistence id may be
        cleaned.
        """
        if found := self._written_ahead(persistence_id, seen):
            return found
        if not self.wanted.force_undelivered and (found := self._undelivered(persistence_id, seen)):
            return found
        if self.wanted.views and not self.wanted.force_unread:
            return self._unread(persistence_id, seen)
        return None

    def _written_ahead(self, persistence_id: str, seen: Seen) -> Refused | None:
        """Refuse rows with write times in the future: they outrank their deletion, and no force option
        changes that.
        """
        table = (
            self.store.messages
            if seen.written > now_in_microseconds()
            else self.store.written_ahead(persistence_id)
        )
        if table is None:
            return None
        said = (
            f"{table} has rows that a clock that was ahead has written: no deletion covers them until "
            "that time has come"
        )
        return Refused("", "written_ahead", f"persistence id {persistence_id!r}: {said}. {UNTOUCHED}")

    # -- undelivered events

    def _delivered(
        self, persistence_id: str, tag: str, partitions: list[int], first: Event
    ) -> list[Delivered]:
        """Return the delivery state of the tag in each pipeline that delivers it.

        `first`: the highest event with the tag that is to be deleted.
        """
        found = []
        for name in self.pipelines:
            pipeline = self.settings.pipeline(name)
            if tag not in pipeline.tags:
                continue
            progress = next(iter(self.ledger.delivered.progress(name, [(tag, persistence_id)])))
            hold = self.ledger.delivered.hold(name, tag, persistence_id)
            above = 0
            if progress and progress.missing and progress.sequence_nr > first.sequence_nr:
                events = self.store.events(
                    persistence_id, partitions, progress.sequence_nr, first.sequence_nr
                )
                above = sum(tag in event.tags for event in events)
            # Events before another pipeline's start don't bind this one: that pipeline never delivers them.
            start = None if name == self.name else pipeline.start_ticks(tag)
            found.append(Delivered(name, progress, hold.reason if hold else None, above, start))
        return found

    def _undelivered(self, persistence_id: str, seen: Seen) -> Refused | None:
        forced = f"{UNTOUCHED}; {FORCE_UNDELIVERED} deletes them all the same"
        for tag, pipelines in sorted(seen.delivered.items()):
            for one in pipelines:
                if one.undelivered:
                    return Refused(tag, one.word, f"{_named(persistence_id, tag)}: {one.text}. {forced}")
        last = seen.last_tagged
        if self.builds and last and last.sequence_nr > (numbered := self.builds.numbered_to(persistence_id)):
            tag = min(last.tags)
            said = f"the view is built to sequence_nr {numbered} only, {last.sequence_nr} was to go"
            return Refused(tag, "not_built", f"{_named(persistence_id, tag)}: {said}. {forced}")
        return None

    # -- unread rows

    def _unread(self, persistence_id: str, seen: Seen) -> Refused | None:
        """Return a refusal if a reader or a run still needs the newest row of a tag; older rows need no check
        of their own.
        """
        for tag, newest in sorted(seen.newest.items()):
            size = self.pipeline.bucket_size
            bucket = Bucket(tag, size.start(newest), size)
            refusal = cleanup_rules.refused_by_readers(bucket, self._readers(tag)) or self._read_again(bucket)
            if refusal:
                said = f"{_named(persistence_id, tag)}: {refusal.text}"
                return Refused(
                    tag,
                    refusal.reason.value,
                    f"{said}. {UNTOUCHED}; {FORCE_UNREAD} deletes them all the same",
                )
        return None

    def _readers(self, tag: str) -> Sequence[ReadTo] | None:
        if tag not in self.readers:
            stated = self.pipeline.cleanup.other_readers
            self.readers[tag] = (
                None if stated is None else list(readers.positions(self.ledger.cassandra, stated, tag))
            )
        return self.readers[tag]

    def _read_again(self, bucket: Bucket) -> cleanup_rules.Refusal | None:
        for name, stands in self.standings.items():
            pipeline = self.settings.pipeline(name)
            if bucket.tag in pipeline.tags and pipeline.start_ticks(bucket.tag) < bucket.end:
                refusal = cleanup_rules.still_read(bucket, delivered(pipeline, name, bucket.tag, stands))
                if refusal:
                    return refusal
        return None


def _named(persistence_id: str, tag: str) -> str:
    return f"persistence id {identifiers.quoted([persistence_id])}, tag {identifiers.quoted([tag])}"
