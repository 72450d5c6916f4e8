"""Define what `tagmill explain` says of a pipeline's next run."""

from collections.abc import Callable, Iterable, Iterator

from tagmill.domain.documents import Document
from tagmill.errors import TagmillError


class Reading(Document):
    """What the next run reads of one tag, or of one partition of a topic.

    `begin` and `end`: moments (UTC), or offsets of Kafka. `new`: rows or records that were not read before;
    `again`: earlier rows that are read again; `held`: rows that open holds keep back now.
    """

    source: str
    begin: str
    end: str
    new: int
    again: int = 0
    held: int = 0


class Explanation(Document):
    """What the next run of a pipeline reads, holds and pushes.

    `run`: its number, None: there is nothing to do. `sentences` say it in words. `stops`: why it would stop;
    empty: it would not.
    """

    pipeline: str
    kind: str
    run: int | None
    sentences: list[str]
    reads: list[Reading] = []
    stops: list[str] = []


def stops_of(guards: Iterable[Callable[[], object]]) -> Iterator[str]:
    """Call what a plan calls before it reads, and yield the line of each guard that would stop it."""
    for guard in guards:
        try:
            guard()
        except TagmillError as error:
            yield error.line
