"""Count the rows that the rules have judged, and name the first of them; rows come table by table, as a seal
reads them from its files.

A table has tag, persistence_id, tag_pid_sequence_nr, sequence_nr, ticks, timebucket, action (deliver, drop,
hold, late) and reason. What is kept grows with the persistence_ids by eight bytes each.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tagmill.quality.model import DispositionCount, OffendingRow

COLUMNS = (
    "tag",
    "persistence_id",
    "tag_pid_sequence_nr",
    "sequence_nr",
    "ticks",
    "timebucket",
    "action",
    "reason",
)
KIND = ("tag", "reason", "action")
Kind = tuple[str, str, str]
Hashes = npt.NDArray[np.uint64]


class Suspects:
    """Counts and examples of judged rows.

    `limit`: the rows to name of each tag, reason and action. `waiting`: tag and persistence_id of the holds
    that were open before the run.
    """

    def __init__(self, limit: int, waiting: Iterable[tuple[str, str]] = ()) -> None:
        self.limit = limit
        of_tags = defaultdict[str, list[str]](list)
        for tag, persistence_id in waiting:
            of_tags[tag].append(persistence_id)
        self._waiting = {tag: pa.array(ids, pa.string()) for tag, ids in of_tags.items()}
        self._rows = Counter[Kind]()
        self._ids = defaultdict[Kind, list[Hashes]](list)
        self._first: dict[Kind, pa.Table] = {}
        self._newly_held, self._newly_held_ids = 0, list[Hashes]()

    def add(self, rows: pa.Table) -> None:
        """Count the rows of a table with COLUMNS, and perhaps more."""
        rows = rows.select(COLUMNS)
        tag = rows.column_names.index("tag")
        rows = rows.set_column(tag, "tag", pc.coalesce(rows["tag"], ""))
        for line in rows.group_by(list(KIND)).aggregate([([], "count_all")]).to_pylist():
            kind = (line["tag"], line["reason"], line["action"])
            self._rows[kind] += line["count_all"]
            of_kind = rows.filter(
                (pc.field("tag") == kind[0])
                & (pc.field("reason") == kind[1])
                & (pc.field("action") == kind[2])
            )
            self._ids[kind].append(_hashes(of_kind["persistence_id"]))
            known = self._first.get(kind)
            self._first[kind] = _first(
                of_kind if known is None else pa.concat_tables([known, of_kind]), self.limit
            )
            if kind[2] == "hold":
                self._hold(kind[0], of_kind["persistence_id"])

    def _hold(self, tag: str, persistence_ids: pa.ChunkedArray) -> None:
        open_before = self._waiting.get(tag, pa.array([], pa.string()))
        new = persistence_ids.filter(pc.invert(pc.is_in(persistence_ids, open_before)))
        self._newly_held += len(new)
        self._newly_held_ids.append(_hashes(new))

    @property
    def counts(self) -> tuple[DispositionCount, ...]:
        """Rows and persistence_ids by tag, reason and action, in this order."""
        return tuple(
            DispositionCount(tag, reason, action, rows, _different(self._ids[tag, reason, action]))
            for (tag, reason, action), rows in sorted(self._rows.items())
        )

    @property
    def newly_held(self) -> tuple[int, int]:
        """Held rows of persistence_ids that had no open hold, and these persistence_ids: one that is held in
        two tags counts once.
        """
        return self._newly_held, _different(self._newly_held_ids)

    @property
    def offending(self) -> tuple[OffendingRow, ...]:
        """The first rows of each tag, reason and action, ordered by reason, tag, persistence_id and number.

        The first rows of all persistence_ids come before any second row, so that many ids are named rather
        than many rows of one.
        """
        rows = [OffendingRow(**row) for table in self._first.values() for row in table.to_pylist()]
        return tuple(sorted(rows, key=_order))


def _first(rows: pa.Table, limit: int) -> pa.Table:
    """Return the `limit` rows that come first: by their place within their persistence_id, then by
    persistence_id and number.
    """
    names = pc.coalesce(rows["persistence_id"], "")
    order = ("name", "tag_pid_sequence_nr", "sequence_nr")
    sorted_by = pc.sort_indices(rows.append_column("name", names), [(name, "ascending") for name in order])
    rows, names = rows.take(sorted_by), names.take(sorted_by).combine_chunks().dictionary_encode()
    begins = np.flatnonzero(np.diff(names.indices.to_numpy(zero_copy_only=False), prepend=-1))
    place = np.arange(len(rows)) - np.repeat(begins, np.diff(begins, append=len(rows)))
    return rows.take(pa.array(np.argsort(place, kind="stable")[:limit]))


def _hashes(persistence_ids: pa.ChunkedArray) -> Hashes:
    names = persistence_ids.unique().to_numpy(zero_copy_only=False)
    hashes: Hashes = pd.util.hash_array(np.asarray(names, dtype=object), categorize=False)
    return hashes


def _different(hashes: list[Hashes]) -> int:
    return len(np.unique(np.concatenate(hashes))) if hashes else 0


def _order(row: OffendingRow) -> tuple[Any, ...]:
    key = (row.persistence_id, row.tag_pid_sequence_nr, row.sequence_nr)
    return (row.reason, row.tag, *((False,) if value is None else (True, value) for value in key))
