"""Ask the journal and the earlier buckets about the gaps that a judgement found.

Gaps beyond the limits below stay held.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.tag_views.holds import events_of_gap
from tagmill.delivery.tag_views.judge import FROM_JOURNAL, Key, Knowledge
from tagmill.delivery.tag_views.model import Plan
from tagmill.domain.continuity.model import Earlier, Evidence, Gap, Row
from tagmill.domain.timeuuid import from_datetime
from tagmill.domain.timeuuid import ticks as ticks_of
from tagmill.journal.tag_view_reader import JournalEvent, Views
from tagmill.ledger.runs import Ledger

# Judgements of one run at most; each may reveal gaps that the journal has to be asked about.
MAX_PASSES = 20
# Gaps that one run asks the journal about.
MAX_GAPS = 10_000
# Events from the journal that one run keeps; gaps that come after them wait for the next run. As many as
# max_missing_to_search may be, or a gap would wait for ever.
MAX_BACKFILLED_EVENTS = 200_000
# Bytes of payloads and keys from the journal from which on gaps wait for the next run; the gap with which they are
# reached may have holds.MAX_GAP_BYTES.
MAX_BACKFILLED_BYTES = 256 * 1024 * 1024
# Buckets that a scan for a lower number reads at most.
MAX_EARLIER_BUCKETS = 200


@dataclass(frozen=True, slots=True)
class Backfilled:
    """An event of the journal that may fill a gap; its index is its row_index in the file 'journal'."""

    index: int
    key: Key
    number: int
    event: JournalEvent
    timebucket: int


class GapInvestigator:
    """The evidence about the gaps of one run; it grows from pass to pass."""

    def __init__(self, ledger: Ledger, views: Views, plan: Plan, pipeline: PipelineSettings) -> None:
        self.ledger = ledger
        self.views = views
        self.plan = plan
        self.pipeline = pipeline
        self.knowledge = Knowledge()
        self.backfilled: list[Backfilled] = []
        self._backfilled_bytes = 0
        self._since = {
            (look.tag, look.persistence_id): (look.gap, from_datetime(look.since)) for look in plan.holds
        }
        self._asked: set[tuple[Key, Gap]] = set()
        self._buckets: dict[str, list[int]] | None = None

    def ask(self, gaps: Iterable[tuple[Key, Gap]]) -> bool:
        """Look up evidence about gaps that were not asked about before; return whether there were any."""
        news = False
        for key, gap in gaps:
            if (key, gap) in self._asked or len(self._asked) >= MAX_GAPS:
                continue
            self._asked.add((key, gap))
            news = True
            self.knowledge.journal.setdefault(key, {})[gap] = self._evidence(key, gap)
            if gap.first == 1 and gap.after_sequence_nr == 0 and self.pipeline.first_seen != "require_one":
                self.knowledge.earlier[key] = self._earlier(key, gap)
        return news

    def _evidence(self, key: Key, gap: Gap) -> Evidence:
        tag, persistence_id = key
        deleted_to = self.views.deleted_to(persistence_id)
        known_gap, since = self._since.get(key, (None, None))
        seen_at = since if known_gap and known_gap.first == gap.first else from_datetime(self.plan.planned_at)
        full = (
            len(self.backfilled) + gap.size > MAX_BACKFILLED_EVENTS
            or self._backfilled_bytes >= MAX_BACKFILLED_BYTES
        )
        if full or gap.size > self.pipeline.max_missing_to_search:
            return Evidence(None, deleted_to, seen_at)
        events = events_of_gap(self.views, self.pipeline, tag, persistence_id, gap)
        if events is None:
            return Evidence(None, deleted_to, seen_at, too_large=True)
        return Evidence(
            tuple(self._keep(key, gap.first + i, event) for i, event in enumerate(events)),
            deleted_to,
            seen_at,
        )

    def _keep(self, key: Key, number: int, event: JournalEvent) -> Row:
        index = len(self.backfilled)
        ticks = ticks_of(event.offset)
        timebucket = self.pipeline.bucket_size.start(ticks)
        self.backfilled.append(Backfilled(index, key, number, event, timebucket))
        size = event.size + len(key[0].encode()) + len(key[1].encode()) + 100
        self._backfilled_bytes += size
        handle = (FROM_JOURNAL, index, timebucket, size)
        missing = event.event is None or event.ser_id is None
        return Row(
            number,
            event.sequence_nr,
            ticks,
            str(event.offset),
            event.writer_uuid or "",
            event_missing=missing,
            handle=handle,
        )

    def _earlier(self, key: Key, gap: Gap) -> Earlier:
        """Return the highest number, up to the end of a gap, that a persistence_id has in buckets up to the
        start of the run's range.
        """
        tag, persistence_id = key
        start = self.pipeline.bucket_size.start(self.plan.tags[tag].after + 1)
        if self._buckets is None:
            self._buckets = self.views.buckets(self.plan.tags)
        before = [bucket for bucket in self._buckets[tag] if bucket <= start]
        for bucket in reversed(before[-MAX_EARLIER_BUCKETS:]):
            numbers = [
                number
                for number, *_ in self.views.numbers(tag, persistence_id, [bucket])
                if number <= gap.last
            ]
            if numbers:
                return Earlier(max(numbers))
        return Earlier(None)
