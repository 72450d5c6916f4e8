"""Read rows of Cassandra as Arrow, page by page: the driver extracts the bytes of each value, and whole
columns are converted.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, cast

import numpy as np
import pyarrow as pa
from cassandra import cqltypes
from cassandra.cluster import EXEC_PROFILE_DEFAULT, ResultSet
from cassandra.deserializers import make_deserializers
from cassandra.metadata import Murmur3Token
from cassandra.numpy_parser import NumpyParser
from cassandra.parsing import ParseDesc
from cassandra.protocol import cython_protocol_handler

from tagmill.cassandra.arrow_values import Values, as_arrow
from tagmill.cassandra.client import PASSING, Cassandra, connected, explained
from tagmill.config.settings import CassandraSettings
from tagmill.errors import TagmillError

# Rows of the first page (few, since each may have megabytes) and of any page at most; bytes of a page; growth
# from page to page.
FIRST_PAGE, LARGEST_PAGE, PAGE_BYTES, GROWTH = 50, 5000, 4 * 1024 * 1024, 8
# Queries whose first pages are under way, of many that are read one after the other, if their rows may be large.
AHEAD = 3
# Pages of fewer rows than LARGE that are converted together at most.
LARGE, TOGETHER = 200, 200
LOWEST, HIGHEST = -(2**63), 2**63 - 1


class Pages:
    """A session for queries by pages, next to that of `cassandra`, at the application's consistency; or, for tables
    of Tagmill's `own`, at theirs.

    Use it in `with`.
    """

    def __init__(self, cassandra: Cassandra, *, own: bool = False) -> None:
        self.cassandra = cassandra if own else cassandra.application
        with explained(cassandra.where):
            self.session = cassandra.cluster.connect()
        self.session.client_protocol_handler = _HANDLER
        # Rows that a page may have by the sizes of those read last.
        self.fits = LARGEST_PAGE
        self.profile = self.session.execution_profile_clone_update(
            EXEC_PROFILE_DEFAULT, row_factory=_whole_page
        )

    def __enter__(self) -> "Pages":
        return self

    def __exit__(self, *_: object) -> None:
        self.session.shutdown()

    def of(self, cql: str, *values: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one query a page at a time; the next page is requested meanwhile, and again after
        a passing fault.
        """
        return self.of_each(cql, [values])

    def of_each(
        self, cql: str, each: Iterable[Sequence[Any]], ahead: int = AHEAD
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query for each of these values, one after the other, as `of` does; the first pages of
        the `ahead` next ones are requested meanwhile, fewer while rows are large. Rows of several queries may come
        together.
        """
        with explained(self.cassandra.where):
            statement = self.cassandra.prepare(cql)
            queries = (_Query(self, statement, values) for values in each)
            yield from _together(self._pages_of(queries, ahead))

    def _pages_of(self, queries: "Iterator[_Query]", ahead: int) -> "Iterator[_Page]":
        waiting = deque(islice(queries, AHEAD))
        while waiting:
            yield from waiting.popleft().pages()
            # Each first page may have FIRST_PAGE rows, and those read last tell how large they are.
            fitting = max(AHEAD, min(ahead, len(waiting) + 2, self.fits // FIRST_PAGE))
            waiting.extend(islice(queries, max(0, fitting - len(waiting))))


def _together(pages: "Iterable[_Page]") -> Iterator[pa.RecordBatch]:
    """Yield the rows of pages, those of small ones together: converting a page costs as much as some dozen rows."""
    small, size = list[_Page](), 0
    for page in pages:
        if small and (page.is_large or size + page.size > PAGE_BYTES or len(small) == TOGETHER):
            yield _as_arrow(small)
            small, size = [], 0
        if page.is_large:
            yield page.batch
        else:
            small.append(page)
            size += page.size
    if small:
        yield _as_arrow(small)


class _Page:
    """The columns (bytes, None: null) of a page by name, their types, and the bytes of all values."""

    def __init__(self, answer: ResultSet) -> None:
        (self.columns,) = answer.current_rows
        self.types = answer.column_types
        self.rows = len(next(iter(self.columns.values())))
        self.is_large = self.rows >= LARGE

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """The page as Arrow."""
        return _as_arrow([self])

    @cached_property
    def size(self) -> int:
        """Bytes of the values."""
        if self.is_large:
            return int(self.batch.nbytes)
        return sum(len(value) for column in self.columns.values() for value in column if value is not None)


class _Query:
    """A query whose first page is requested."""

    def __init__(self, reader: Pages, statement: Any, values: Sequence[Any]) -> None:
        self.reader, self.statement, self.values = reader, statement, values
        self.size, self.state = min(FIRST_PAGE, reader.fits), None
        self.asked = self._ask()

    def pages(self) -> Iterator[_Page]:
        """Yield the pages that have rows; while one is in use, the next is under way."""
        while self.asked is not None:
            answer = self._answer()
            page, self.asked, self.state = _Page(answer), None, answer.paging_state
            if page.rows:
                self.reader.fits = max(1, page.rows * PAGE_BYTES // max(1, page.size))
            if self.state:
                fits = self.reader.fits if page.rows else self.size
                self.size = min(fits, self.size * GROWTH, LARGEST_PAGE)
                self.asked = self._ask()
            if page.rows:
                yield page

    def _ask(self) -> Any:
        bound = self.statement.bind(self.values)
        bound.fetch_size = self.size
        return self.reader.session.execute_async(
            bound, execution_profile=self.reader.profile, paging_state=self.state
        )

    def _answer(self) -> ResultSet:
        try:
            return self.asked.result()
        except PASSING:
            return self.reader.cassandra.retried(self._smaller)

    def _smaller(self) -> ResultSet:
        """Return the page with fewer rows: those of the one requested may have been too large for a node."""
        self.size = max(1, self.size // GROWTH)
        return self._ask().result()


_kept = dict[bool, tuple[Cassandra, Pages]]()


def kept_pages(settings: CassandraSettings, *, own: bool = False) -> Pages:
    """Return the pages of this process's connection, which a Python worker of Spark keeps for its later tasks."""
    cassandra = connected(settings)
    if own not in _kept or _kept[own][0] is not cassandra:
        _kept[own] = cassandra, Pages(cassandra, own=own)
    return _kept[own][1]


def token_ranges(cassandra: Cassandra, parts: int) -> list[tuple[int, int]] | None:
    """Return at least `parts` ranges of tokens that together hold all partitions, each on one set of
    replicas.

    Lower bounds are exclusive. None: the cluster's partitioner isn't Murmur3.
    """
    tokens = cassandra.cluster.metadata.token_map
    if tokens is None or tokens.token_class is not Murmur3Token:
        return None
    # Murmur3 gives no partition the lowest token, so an exclusive lower bound loses none.
    bounds = [LOWEST, *sorted({token.value for token in tokens.ring} - {LOWEST, HIGHEST}), HIGHEST]
    step = (HIGHEST - LOWEST) // parts + 1
    cuts = sorted({*bounds, *range(LOWEST, HIGHEST, step)})
    return list(zip(cuts[:-1], cuts[1:], strict=True))


class _Bytes(NumpyParser):  # type: ignore[misc]
    """A parser of the driver's that leaves each value as its bytes."""

    def parse_rows(self, reader: Any, desc: Any) -> dict[str, Values]:
        """Return arrays of bytes, None for null, by the names of the columns."""
        types = [cqltypes.BytesType] * len(desc.coltypes)
        plain = ParseDesc(
            desc.colnames, types, None, desc.coldescs, make_deserializers(types), desc.protocol_version
        )
        return cast(dict[str, Values], super().parse_rows(reader, plain))


_HANDLER = cython_protocol_handler(_Bytes())


def _whole_page(_names: Any, columns: Any) -> Any:
    if not isinstance(columns, dict):
        # The driver's parser is silent when it fails, which would look like an answer without rows.
        raise TagmillError(
            "an answer of Cassandra could not be read. Nothing of it was used; this is a defect, please "
            "report it"
        )
    return columns


def _as_arrow(pages: Sequence[_Page]) -> pa.RecordBatch:
    """Convert pages of one query's columns to Arrow."""
    names, types = list(pages[0].columns), pages[0].types
    values = (
        np.concatenate([page.columns[name] for page in pages]) if len(pages) > 1 else pages[0].columns[name]
        for name in names
    )
    arrays = [as_arrow(column, kind) for column, kind in zip(values, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)
