"""Which events are delivered, by what the ledger says of their tag and persistence id. Pure."""

from dataclasses import dataclass, field

from tagmill.continuity.model import Progress, Reason

# a hold for one of these says that progress and the view's numbers don't fit: nothing can be told from them
NUMBERS_IN_DOUBT = (Reason.RENUMBERED.value, Reason.BROKEN_KEY.value)


@dataclass(slots=True)
class Delivered:
    """How far one pipeline is with one tag of one persistence id. Events are shown to it from the highest sequence_nr down.

    The numbers 1, 2, 3 … go with the events in order, so an event's number is known by counting back from progress. above: how many
    events with the tag lie above the first one shown, up to progress; start: ticks, the pipeline wants nothing before (None: all).
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
        """The last sequence_nr that can count as delivered."""
        return 0 if self.progress is None or self.hold in NUMBERS_IN_DOUBT else self.progress.sequence_nr

    def shown(self, sequence_nr: int, ticks: int) -> None:
        """The next event with the tag, downwards."""
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
        """Why not, in a word."""
        return "held" if self.hold else "not_delivered"

    @property
    def text(self) -> str:
        """Why not, in a sentence."""
        there = f"delivered to sequence_nr {self.reached}" if self.reached else "not delivered at all"
        if self.progress is not None and self.highest <= self.reached:
            there += ", with numbers below that were never delivered"
        held = f", and held ({self.hold})" if self.hold else ""
        events = "1 event" if self.undelivered == 1 else f"{self.undelivered} events"
        return f"pipeline {self.pipeline}: {there}{held}; {events} up to sequence_nr {self.highest} would be lost"
