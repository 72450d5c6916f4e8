"""Tell two lives of a persistence_id apart: its numbers began again, so a number alone does not identify an
event.
"""

from collections.abc import Collection

from tagmill.domain.continuity.model import Progress, Row


def is_in_doubt(progress: Progress, row: Row) -> bool:
    """Return whether a row whose number is delivered may be of another life than what was delivered.

    Apart from clock skew, a row of the same life is earlier than the last delivered one, or has its offset.
    """
    if not progress.ticks or row.number > progress.number:
        return False
    return row.ticks > progress.ticks or (row.number == progress.number and row.offset != progress.offset)


def is_other_life(rows: Collection[Row], strangers: Collection[str]) -> bool:
    """Return whether the rows of one number are of another life than the delivered ones.

    `strangers`: offsets in doubt that the destination does not have. A second row of a delivered event, by
    the same writer, is a copy.
    """
    of_life = {(row.sequence_nr, row.writer_uuid) for row in rows if row.offset not in strangers}
    return any(row.offset in strangers and (row.sequence_nr, row.writer_uuid) not in of_life for row in rows)
