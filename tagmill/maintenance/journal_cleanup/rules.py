"""Decides which events are delivered, from the ledger's progress and hold of their tag and persistence id.

Pure.
"""

from dataclasses import dataclass, field

from tagmill.domain.continuity.model import Progress, Reason

# A hold for one of these reasons means that progress and the view's numbers don't match, so neither proves a
# delivery.
NUMBERS_IN_DOUBT = (Reason.RENUMBERED.value, Reason.BROKEN_KEY.value)


@dataclass(slots=True)
class Delivered:
    """Delivery state of one tag and persistence id in one pipeline; its events are passed to `shown`, the
    highest sequence_nr first.

    The numbers 1, 2, 3 … go with the events in order, so an event's number is known by counting back from
    progress. above: how many events with the tag lie above the first one shown, up to progress; start: ticks,
    the pipeline wants nothing before (None: all).
    """

    pipeline: str
    progress: Progress | None
    hold: str | None = None
    above: int = 0
    start: int | None = None
    undelivered: int = 0
    highest: int = 0
    _counted: int = field(init=False, default=0)

    @property
    def reached(self) -> int:
        """Last sequence_nr that can count as delivered."""
        return 0 if self.progress is None or self.hold in NUMBERS_IN_DOUBT else self.progress.sequence_nr

    def shown(self, sequence_nr: int, ticks: int) -> None:
        """Count the next lower event with the tag, as delivered or undelivered."""
        delivered = False
        if self.progress is not None and sequence_nr <= self.reached:
            number = self.progress.number - self.above - self._counted
            self._counted += 1
            delivered = self.progress.delivered(number)
        if not delivered and (self.start is None or ticks >= self.start):
            self.undelivered += 1
            self.highest = max(self.highest, sequence_nr)

    @property
    def word(self) -> str:
        """Reason in one word why events are undelivered."""
        return "held" if self.hold else "not_delivered"

    @property
    def text(self) -> str:
        """Reason in a sentence why events are undelivered."""
        there = f"delivered to sequence_nr {self.reached}" if self.reached else "not delivered at all"
        if self.progress is not None and self.highest <= self.reached:
            there += ", with numbers below that were never delivered"
        held = f", and held ({self.hold})" if self.hold else ""
        events = "1 event" if self.undelivered == 1 else f"{self.undelivered} events"
        return (
            f"pipeline {self.pipeline}: {there}{held}; {events} up to sequence_nr {self.highest} "
            "would be lost"
        )
