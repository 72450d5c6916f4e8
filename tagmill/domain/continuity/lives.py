"""Tell two lives of a persistence_id apart: its numbers began again, so a number alone does not identify an
event.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from tagmill.domain.continuity.model import Progress, Row
from tagmill.domain.timeuuid import lowest


def is_in_doubt(progress: Progress, row: Row) -> bool:
    """Return whether a row whose number is delivered may be of another life than what was delivered.

    Apart from clock skew, a row of the same life is earlier than the last delivered one, or has its offset.
    """
    if not progress.ticks or row.number > progress.number or progress.of_earlier_life(row.ticks):
        return False
    return row.ticks > progress.ticks or (row.number == progress.number and row.offset != progress.offset)


def is_other_life(rows: Collection[Row], strangers: Collection[str]) -> bool:
    """Return whether the rows of one number are of another life than the delivered ones.

    `strangers`: offsets in doubt whose events the destination does not have. A second row of a delivered event,
    by the same writer, is a copy.
    """
    of_life = {(row.sequence_nr, row.writer_uuid) for row in rows if row.offset not in strangers}
    return any(row.offset in strangers and (row.sequence_nr, row.writer_uuid) not in of_life for row in rows)


def new_life(
    progress: Progress, rows: Iterable[Row], delivered: Collection[tuple[int, str]]
) -> Progress | None:
    """Return the progress with which a later life begins, or None if no row is of one.

    `delivered`: (sequence_nr, writer_uuid) of the destination. Rows of a later life are not there, are by a writer
    of whom nothing is, and have a number or sequence_nr that progress has passed. Numbers may begin again, or go on
    while only sequence_nrs begin again.
    """
    writers = {writer for _, writer in delivered}
    later = [row for row in rows if row.writer_uuid not in writers]
    again = [row for row in later if progress.delivered(row.number) and is_in_doubt(progress, row)]
    on = [
        row
        for row in later
        if row.number > progress.number
        and row.sequence_nr <= progress.sequence_nr
        and row.ticks > progress.ticks
    ]
    if not (again or on):
        return None
    life_from = min(row.ticks for row in (*again, *on))
    if again:
        return Progress(0, 0, life_from, str(lowest(life_from)), (), life_from)
    return replace(progress, sequence_nr=0, life_from=life_from)
