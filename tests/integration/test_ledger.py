"""The ledger in real Cassandra: leases, fences, moves of runs and batches, and progress and holds ordered by
run number.
"""

import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import psutil
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import CassandraSettings, Settings
from tagmill.domain import timeuuid
from tagmill.domain.batches.states import BATCH_MOVES, BatchState, RunState, may_move_batch, may_move_run
from tagmill.domain.continuity.model import Gap, Progress
from tagmill.domain.time_buckets import BucketSize, View, first_ticks
from tagmill.errors import (
    FenceRaised,
    ForeignWriteTime,
    GuardRefused,
    LeaseTaken,
    TerminalError,
    WorkUnfinished,
)
from tagmill.ledger import progress_rows, schema
from tagmill.ledger.attempts import Attempts, counted, unended
from tagmill.ledger.cleanups import Cleaning, CleanupLog
from tagmill.ledger.erasure_plans import PART_BYTES, ErasurePlans
from tagmill.ledger.erasures import ErasureRow, Erasures, ErasureState
from tagmill.ledger.lease import Lease, is_dead, this_process
from tagmill.ledger.progress import (
    HOLD_SHARDS,
    HoldRow,
    Watermark,
    read_intervals,
    shard,
    write_intervals,
)
from tagmill.ledger.runs import Ledger, RunRow
from tagmill.ledger.view_tables import JournalViews
from tests.support.errors import raises

KEYSPACE = "t_ledger"
TICK = 17_952_444_000_000_000
OFFSET = str(timeuuid.lowest(TICK))
BATCH = UUID("00000000-0000-4000-8000-000000000001")


@pytest.fixture(scope="module")
def configured(stack: Any) -> Iterator[CassandraSettings]:
    """Yield settings of Cassandra with a ledger keyspace of this module's own."""
    settings = CassandraSettings(port=stack.cassandra.port, ledger_keyspace=KEYSPACE)
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    with Cassandra(settings) as cassandra:
        for statement in schema.statements("cassandra", {"ledger": KEYSPACE, "replication": replication}):
            cassandra.execute(statement)
    yield settings
    stack.session.execute(f"DROP KEYSPACE {KEYSPACE}")


@pytest.fixture(scope="module")
def ledger(configured: CassandraSettings) -> Iterator[Ledger]:
    """Yield an open ledger in the keyspace of this module."""
    with Ledger(configured) as opened:
        yield opened


@pytest.fixture
def pipeline() -> str:
    """Return the name of a new pipeline."""
    return f"p_{uuid4().hex[:8]}"


@pytest.fixture
def lease(ledger: Ledger, pipeline: str) -> Callable[..., Lease]:
    """Return lease(owner, seconds), which makes a lease of the pipeline."""
    return lambda owner, seconds=30: Lease(ledger.cassandra, KEYSPACE, pipeline, owner, seconds)


def planned(ledger: Ledger, pipeline: str, run: int = 1) -> RunRow:
    """Create a planned run and return its row."""
    return ledger.create_run(
        pipeline,
        run,
        kind="deliver",
        state=RunState.PLANNED,
        owner="a",
        plan_file="plan.json",
        plan_sha256="00",
    )


# -- lease


def test_lease_second_owner_is_refused_with_holder(lease) -> None:
    lease("airflow/one").take()
    with pytest.raises(LeaseTaken, match="airflow/one is at work"):
        lease("airflow/two").take()


def test_the_holder_may_take_it_again(lease) -> None:
    lease("airflow/one").take()
    lease("airflow/one").take()
    assert lease("airflow/one").holder() == "airflow/one"


def test_lease_row_of_older_release_is_taken(lease) -> None:
    """Rows of older releases have no attempt: the owner takes its lease again, another one is refused."""
    mine = lease("airflow/manual#1")
    mine.cassandra.execute(
        f"INSERT INTO {mine.table} (pipeline, owner) VALUES (?, ?)", mine.pipeline, mine.owner
    )
    with pytest.raises(LeaseTaken, match="airflow/manual#1 is at work"):
        lease("airflow/manual").take()
    mine.take()
    mine.require()


def test_lease_taken_by_next_attempt_is_lost(lease) -> None:
    """Start another attempt of a step that is still at work: only the newer one has the lease."""
    first, second = lease("airflow/one", 3), lease("airflow/one", 3)
    first.take()
    with first.kept():
        second.take()
        with second.kept():
            second.require()
            time.sleep(2.5)  # until both have renewed it
            with pytest.raises(LeaseTaken, match="airflow/one may have been at work"):
                first.require()
            first.give_back()
            second.require()
            with pytest.raises(LeaseTaken, match="airflow/one is at work"):
                lease("airflow/two").take()


def test_a_lease_given_back_is_free_at_once(lease) -> None:
    mine = lease("airflow/one")
    mine.take()
    mine.give_back()
    lease("airflow/two").take()
    assert lease("airflow/two").holder() == "airflow/two"


def test_lease_given_back_by_other_changes_nothing(lease) -> None:
    lease("airflow/one").take()
    lease("airflow/two").give_back()
    lease("airflow/one").give_back()  # another attempt
    assert lease("airflow/one").holder() == "airflow/one"


def test_lease_eight_owners_at_once_one_wins(lease) -> None:
    def taken(owner: str) -> bool:
        try:
            lease(owner).take()
        except LeaseTaken:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(taken, (f"airflow/{n}" for n in range(8)))) == 1


def test_an_unrenewed_lease_expires(lease) -> None:
    lease("airflow/one", 2).take()
    began = time.monotonic()
    lease("airflow/two", 2).take(wait_seconds=30)
    assert time.monotonic() - began > 0.5
    assert lease("airflow/two").holder() == "airflow/two"


@pytest.mark.parametrize("seen", [True, False], ids=["after we saw it", "before we looked"])
def test_lease_of_dead_process_expiring_is_free(seen: bool, lease) -> None:
    """Let the lease of a dead process expire while another owner takes it, before and after that owner has
    read the holder.
    """
    dead = lease(f"cli/{socket.gethostname()}/999999999/1")
    dead.take()
    mine = lease("airflow/two")
    look = mine.holding_attempt

    def expires() -> str | None:
        found = look() if seen else None
        dead.give_back()
        mine.holding_attempt = look
        return found

    mine.holding_attempt = expires
    mine.take()
    assert mine.holder() == "airflow/two"


def test_lease_kept_during_work_is_renewed(lease) -> None:
    mine = lease("airflow/one", 2)
    mine.take()
    with mine.kept():
        with pytest.raises(LeaseTaken):
            lease("airflow/two", 2).take(wait_seconds=4)
    assert mine.holder() == "airflow/one"


def test_lease_given_back_during_work_stays_free(lease) -> None:
    mine = lease("airflow/one", 1)
    mine.take()
    with mine.kept():
        mine.give_back()
        time.sleep(1.2)  # long enough for several renewals
        assert mine.holder() is None


def test_lease_lost_and_taken_again_is_told(lease) -> None:
    """Let a lease expire while its holder sleeps: what no fence guards ends, also if the lease is the holder's again."""
    mine, other = lease("airflow/one", 3), lease("airflow/two", 3)
    mine.take()
    with mine.kept():
        mine.require()
        mine.cassandra.execute(f"DELETE FROM {mine.table} WHERE pipeline = ? IF EXISTS", mine.pipeline)
        with pytest.raises(LeaseTaken, match="lost its lease"):
            mine.require()
        time.sleep(1.5)  # until the renewal has taken it again
        assert mine.holder() == "airflow/one"
        with pytest.raises(LeaseTaken, match="lost its lease"):
            mine.require()
    mine.give_back()
    other.take()
    with pytest.raises(LeaseTaken, match="airflow/two"):
        mine.require()


def test_lease_of_dead_local_process_is_free(lease) -> None:
    """Kill a process of this machine: another owner takes its lease at once, even before the parent has
    waited for it.
    """
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    start = psutil.Process(process.pid).create_time() - psutil.boot_time()
    owner = f"cli/{socket.gethostname()}/{process.pid}/{start:.0f}"
    try:
        lease(owner, 600).take()
        with pytest.raises(LeaseTaken):
            lease("airflow/two").take()
    finally:
        process.kill()
    lease("airflow/two").take(wait_seconds=2)  # a zombie counts as dead
    process.wait()
    assert lease("airflow/two").holder() == "airflow/two"


def test_is_dead_only_for_process_surely_gone() -> None:
    mine, namespace = this_process().rsplit("/", 1)
    host, start = socket.gethostname(), mine.rsplit("/", 1)[1]
    assert not is_dead(mine) and not is_dead(f"{mine}/{namespace}")
    assert is_dead(f"cli/{host}/999999999/1/{namespace}")
    assert not is_dead(f"cli/{host}/999999999/1/1{namespace}")  # of a container with this host's name
    assert not is_dead(f"{mine.rsplit('/', 1)[0]}/{int(start) + 1}")  # rounded
    two_days_later = psutil.boot_time() + 172_800
    with patch("psutil._pslinux.boot_time", lambda: two_days_later):  # the clock was set meanwhile
        assert psutil.boot_time() == two_days_later and not is_dead(mine)
    since_1970 = psutil.Process().create_time()
    assert not is_dead(f"{mine.rsplit('/', 1)[0]}/{since_1970 - 172_800:.0f}")  # an older release's, the same
    assert is_dead(f"{mine.rsplit('/', 1)[0]}/{int(start) - 1000}")  # another process has this number now
    assert is_dead(f"cli/{host}/999999999/1")
    assert is_dead(f"cli/{host}/x/1")
    assert not is_dead("cli/other-host/1/1")
    assert not is_dead("airflow/manual__2026-11-21T07:00:00+00:00")


# -- numbers of runs


def finished(ledger: Ledger, pipeline: str, run: int) -> None:
    """Create a planned run and abandon it."""
    planned(ledger, pipeline, run)
    ledger.finish_run(pipeline, run, 1, RunState.PLANNED, RunState.ABANDONED, "test")


def claimed(ledger: Ledger, pipeline: str) -> int:
    """Claim the next free run number and return it."""
    number = ledger.free_number(pipeline)
    ledger.claim(pipeline, number)
    return number


def test_run_numbers_count_up(ledger: Ledger, pipeline: str) -> None:
    assert ledger.last_run(pipeline) == 0
    for expected in (1, 2, 3):
        assert claimed(ledger, pipeline) == expected
        finished(ledger, pipeline, expected)
    assert ledger.last_run(pipeline) == 3


def test_claim_unused_number_is_claimed_again(ledger: Ledger, pipeline: str) -> None:
    assert [claimed(ledger, pipeline), claimed(ledger, pipeline)] == [1, 1]
    finished(ledger, pipeline, 1)
    assert [claimed(ledger, pipeline), claimed(ledger, pipeline)] == [2, 2]


def test_claim_behind_open_run_is_refused(ledger: Ledger, pipeline: str) -> None:
    row = planned(ledger, pipeline, claimed(ledger, pipeline))
    with raises(WorkUnfinished, match="first: tagmill run deliver", pipeline=pipeline, run=1):
        claimed(ledger, pipeline)
    assert ledger.open_run(pipeline) == row


def test_claim_outdated_number_is_refused(ledger: Ledger, pipeline: str) -> None:
    """Claim a number that was free before two other runs were created."""
    seen = ledger.free_number(pipeline)
    for _ in range(2):
        finished(ledger, pipeline, claimed(ledger, pipeline))
    with raises(FenceRaised, pipeline=pipeline, run=seen):
        ledger.claim(pipeline, seen)
    assert ledger.last_run(pipeline) == 2


def test_create_run_by_concurrent_planners_one_wins(configured: CassandraSettings, pipeline: str) -> None:
    def plan(owner: str) -> int | None:
        with Ledger(configured) as own:
            try:
                return own.create_run(
                    pipeline, claimed(own, pipeline), kind="deliver", state=RunState.PLANNED, owner=owner
                ).run
            except (FenceRaised, GuardRefused):
                return None

    with ThreadPoolExecutor(4) as pool:
        assert [run for run in pool.map(plan, "abcd") if run is not None] == [1]


def test_a_run_number_is_created_once(ledger: Ledger, pipeline: str) -> None:
    first = planned(ledger, pipeline)
    with raises(FenceRaised, pipeline=pipeline, run=1):
        ledger.create_run(pipeline, 1, kind="deliver", state=RunState.PLANNED, owner="b")
    assert ledger.run(pipeline, 1) == first


def test_the_newest_unfinished_run_is_open(ledger: Ledger, pipeline: str) -> None:
    assert ledger.open_run(pipeline) is None
    row = planned(ledger, pipeline, claimed(ledger, pipeline))
    assert ledger.open_run(pipeline) == row
    ledger.finish_run(pipeline, 1, 1, RunState.PLANNED, RunState.ABANDONED, "test")
    assert ledger.open_run(pipeline) is None


# -- the fence


def test_step_with_outdated_fence_changes_nothing(ledger: Ledger, pipeline: str) -> None:
    """Raise the fence of a run, then let each kind of step act with the fence of before."""
    row = planned(ledger, pipeline)
    ledger.add_batches(pipeline, 1, [(1, BATCH, "order", 5, 500)])
    taken = ledger.raise_fence(row, "b")
    (batch,) = ledger.batches(pipeline, 1)
    for late in (
        lambda: ledger.current(pipeline, 1, row.fence),
        lambda: ledger.seal(pipeline, 1, row.fence, "late.json", "ff"),
        lambda: ledger.finish_run(pipeline, 1, row.fence, RunState.PLANNED, RunState.ABANDONED),
        lambda: ledger.move_batch(pipeline, 1, row.fence, batch, BatchState.IN_CLICKHOUSE),
        lambda: ledger.raise_fence(row, "late"),
    ):
        with pytest.raises(FenceRaised):
            late()
    assert ledger.run(pipeline, 1) == taken
    assert ledger.batches(pipeline, 1) == [batch]


def test_the_refusal_names_who_took_over(ledger: Ledger, pipeline: str) -> None:
    ledger.raise_fence(planned(ledger, pipeline), "airflow/scheduled")
    with pytest.raises(FenceRaised, match=r"taken over by airflow/scheduled \(fence 2, this step has 1\)"):
        ledger.current(pipeline, 1, 1)


# -- seal and close


def test_the_first_seal_counts(ledger: Ledger, pipeline: str) -> None:
    planned(ledger, pipeline)
    assert ledger.seal(pipeline, 1, 1, "first.json", "aa")
    assert not ledger.seal(pipeline, 1, 1, "second.json", "bb")
    row = ledger.current(pipeline, 1, 1)
    assert (row.state, row.manifest_file, row.manifest_sha256) == (RunState.SEALED, "first.json", "aa")


def test_of_two_sealers_at_once_one_wins(
    configured: CassandraSettings, ledger: Ledger, pipeline: str
) -> None:
    planned(ledger, pipeline)

    def seal(name: str) -> bool:
        with Ledger(configured) as own:
            return own.seal(pipeline, 1, 1, name, name)

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(seal, "abcd"))
    assert won.count(True) == 1
    assert ledger.current(pipeline, 1, 1).manifest_file == "abcd"[won.index(True)]


def test_closing_twice_is_closing_once(ledger: Ledger, pipeline: str) -> None:
    planned(ledger, pipeline)
    ledger.seal(pipeline, 1, 1, "m.json", "aa")
    ledger.finish_run(pipeline, 1, 1, RunState.SEALED, RunState.CLOSED)
    ledger.finish_run(pipeline, 1, 1, RunState.SEALED, RunState.CLOSED)
    assert ledger.current(pipeline, 1, 1).state == RunState.CLOSED


def test_abandon_sealed_run_is_refused(ledger: Ledger, pipeline: str) -> None:
    planned(ledger, pipeline)
    ledger.seal(pipeline, 1, 1, "m.json", "aa")
    with raises(FenceRaised, pipeline=pipeline, run=1):
        ledger.finish_run(pipeline, 1, 1, RunState.PLANNED, RunState.ABANDONED)
    assert ledger.current(pipeline, 1, 1).state == RunState.SEALED


def test_seal_abandoned_run_is_refused(ledger: Ledger, pipeline: str) -> None:
    planned(ledger, pipeline)
    ledger.finish_run(pipeline, 1, 1, RunState.PLANNED, RunState.ABANDONED, "no more")
    assert not ledger.seal(pipeline, 1, 1, "m.json", "aa")
    row = ledger.current(pipeline, 1, 1)
    assert (row.state, row.manifest_file, row.reason) == (RunState.ABANDONED, None, "no more")


def test_delete_run_removes_batches_unless_taken_up(ledger: Ledger, pipeline: str) -> None:
    """Delete a closed run with its batches; a caller that read the run before another one took it up is
    refused.
    """
    row = planned(ledger, pipeline)
    ledger.seal(pipeline, 1, 1, "m", "00")
    ledger.add_batches(pipeline, 1, [(1, BATCH, "t", 10, 100)])
    ledger.finish_run(pipeline, 1, 1, RunState.SEALED, RunState.CLOSED)
    closed = ledger.run(pipeline, 1)
    assert closed is not None
    raised = ledger.raise_fence(closed, "a resend")
    for stale in (row, closed):
        with raises(FenceRaised, match="It was not removed", pipeline=pipeline, run=1):
            ledger.delete_run(stale)
    assert len(ledger.batches(pipeline, 1)) == 1
    ledger.delete_run(raised)
    assert ledger.run(pipeline, 1) is None and ledger.batches(pipeline, 1) == []
    ledger.add_batches(pipeline, 1, [(1, BATCH, "t", 10, 100)])  # as a sealer would that wakes up now
    assert ledger.run(pipeline, 1) is None and ledger.batches(pipeline, 1) == []


# -- batches


def test_batches_come_back_in_order_as_new(ledger: Ledger, pipeline: str) -> None:
    planned(ledger, pipeline)
    ids = {number: uuid4() for number in range(1, 12)}
    ledger.add_batches(
        pipeline, 1, [(n, ids[n], "order", n, n * 10) for n in (11, 3, 1, 2, 4, 10, 5, 9, 6, 8, 7)]
    )
    found = ledger.batches(pipeline, 1)
    assert [(b.number, b.batch_id, b.rows, b.bytes) for b in found] == [
        (n, ids[n], n, n * 10) for n in range(1, 12)
    ]
    assert {(b.state, b.generation, b.verified_at) for b in found} == {(BatchState.NEW, 1, None)}


@pytest.mark.parametrize("serial", [False, True], ids=["together", "serial"])
def test_many_runs_come_in_asked_order(serial: bool, ledger: Ledger, pipeline: str) -> None:
    """Read 45 numbers in another order, of which some have no run and some no batches."""
    for run in range(1, 46):
        if run % 9:
            planned(ledger, pipeline, run)
            if run % 4:
                ledger.add_batches(
                    pipeline, run, [(number, uuid4(), "order", run, 1) for number in range(1, run % 4 + 1)]
                )
    numbers = [*range(45, 0, -1), 100]
    expected = [(ledger.run(pipeline, number), ledger.batches(pipeline, number)) for number in numbers]
    assert list(ledger.many_runs(pipeline, numbers, serial=serial)) == expected
    assert list(ledger.batches_of_many(pipeline, numbers, serial=serial)) == [
        (number, batches) for number, (_, batches) in zip(numbers, expected, strict=True)
    ]


def test_add_batches_again_undoes_no_move(ledger: Ledger, pipeline: str) -> None:
    planned(ledger, pipeline)
    batches = [(1, BATCH, "order", 5, 500), (2, uuid4(), "order", 6, 600)]
    ledger.add_batches(pipeline, 1, batches)
    ledger.move_batch(pipeline, 1, 1, ledger.batches(pipeline, 1)[0], BatchState.IN_CLICKHOUSE)
    before = ledger.batches(pipeline, 1)
    ledger.add_batches(pipeline, 1, batches)
    assert ledger.batches(pipeline, 1) == before
    assert [b.state for b in before] == [BatchState.IN_CLICKHOUSE, BatchState.NEW]


def test_move_batch_from_outdated_state_is_refused(ledger: Ledger, pipeline: str) -> None:
    planned(ledger, pipeline)
    ledger.add_batches(pipeline, 1, [(1, BATCH, "order", 5, 500)])
    (seen,) = ledger.batches(pipeline, 1)
    ledger.move_batch(pipeline, 1, 1, seen, BatchState.VOIDED)
    with raises(FenceRaised, pipeline=pipeline, run=1, batch=str(BATCH)):
        ledger.move_batch(pipeline, 1, 1, seen, BatchState.IN_CLICKHOUSE)
    assert ledger.batches(pipeline, 1)[0].state == BatchState.VOIDED


def test_the_same_move_twice_is_one_move(ledger: Ledger, pipeline: str) -> None:
    planned(ledger, pipeline)
    ledger.add_batches(pipeline, 1, [(1, BATCH, "order", 5, 500)])
    (seen,) = ledger.batches(pipeline, 1)
    for _ in range(2):
        ledger.move_batch(pipeline, 1, 1, seen, BatchState.IN_CLICKHOUSE)
    assert ledger.batches(pipeline, 1)[0].state == BatchState.IN_CLICKHOUSE


def test_resent_batch_has_next_generation(ledger: Ledger, pipeline: str) -> None:
    planned(ledger, pipeline)
    ledger.add_batches(pipeline, 1, [(1, BATCH, "order", 5, 500)])
    ledger.move_batch(pipeline, 1, 1, ledger.batches(pipeline, 1)[0], BatchState.IN_CLICKHOUSE)
    sent = ledger.batches(pipeline, 1)[0]
    ledger.move_batch(pipeline, 1, 1, sent, BatchState.NEW, 2)
    assert (ledger.batches(pipeline, 1)[0].state, ledger.batches(pipeline, 1)[0].generation) == (
        BatchState.NEW,
        2,
    )


# -- progress, watermarks and holds, ordered by run number


def test_progress_is_returned_in_order_of_keys(ledger: Ledger, pipeline: str) -> None:
    """Write progress under odd names and read it back in another order, with a key that has none."""
    keys = [("order", "a\"'\\ü"), ("order", "b"), ("tag/with/slashes", "a"), ("order", "")]
    written = [Progress(n, n * 10, TICK, OFFSET, ((1, 2), (4, 4)) if n % 2 else ()) for n in range(5, 8)]
    ledger.delivered.write_progress(
        pipeline, 1, [(tag, pid, p) for (tag, pid), p in zip(keys[:3], written, strict=True)]
    )
    assert list(ledger.delivered.progress(pipeline, [*reversed(keys[:3]), ("order", "none")])) == [
        *reversed(written),
        None,
    ]


def test_progress_without_an_event_has_no_offset(ledger: Ledger, pipeline: str) -> None:
    ledger.delivered.write_progress(pipeline, 1, [("order", "a", Progress(4, 40, 0, "", ((1, 4),)))])
    assert list(ledger.delivered.progress(pipeline, [("order", "a")])) == [Progress(4, 40, 0, "", ((1, 4),))]


def test_progress_without_offset_replaces_older_offset(ledger: Ledger, pipeline: str) -> None:
    ledger.delivered.write_progress(pipeline, 1, [("order", "a", Progress(4, 40, TICK, OFFSET))])
    ledger.delivered.write_progress(pipeline, 2, [("order", "a", Progress(4, 40, 0, "", ((1, 4),)))])
    assert list(ledger.delivered.progress(pipeline, [("order", "a")])) == [Progress(4, 40, 0, "", ((1, 4),))]


def many_progress(number: int) -> list[tuple[str, str, Progress]]:
    """Return the progress of 700 ids whose tags alternate; each fifth has gaps and each seventh no offset."""
    return [
        (
            f"tag-{one % 3}",
            f"p-{one}" + "ä" * (one % 400),
            Progress(
                number,
                number + one,
                0 if one % 7 == 0 else TICK,
                "" if one % 7 == 0 else OFFSET,
                () if one % 5 else ((1, 2),),
            ),
        )
        for one in range(700)
    ]


def test_progress_of_many_ids_reads_back(
    ledger: Ledger, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write many ids in several parts, again, and then as a later run; each reads back as written last."""
    monkeypatch.setattr(progress_rows, "ROWS_AT_ONCE", 300)
    for run, number in ((1, 5), (1, 5), (2, 6)):
        rows = many_progress(number)
        assert ledger.delivered.write_progress(pipeline, run, rows) == len(rows)
        keys = [(tag, persistence_id) for tag, persistence_id, _ in rows]
        assert list(ledger.delivered.progress(pipeline, keys)) == [known for *_, known in rows]


def test_progress_one_foreign_row_is_named(ledger: Ledger, pipeline: str) -> None:
    """A row of a later run among many is named, and stays; the others are written."""
    rows = many_progress(5)
    tag, persistence_id, _ = rows[511]
    later = Progress(9, 90, TICK, OFFSET)
    ledger.delivered.write_progress(pipeline, 9, [(tag, persistence_id, later)])
    with pytest.raises(ForeignWriteTime, match=rf"progress of 'p-511.*tag {tag!r}"):
        ledger.delivered.write_progress(pipeline, 8, rows)
    keys = [(tag, persistence_id) for tag, persistence_id, _ in rows]
    expected = [later if place == 511 else known for place, (*_, known) in enumerate(rows)]
    assert list(ledger.delivered.progress(pipeline, keys)) == expected


def test_progress_rows_given_twice_must_agree(ledger: Ledger, pipeline: str) -> None:
    """Two rows of one key that differ are refused: only one of them can be stored."""
    both = [("order", "a", Progress(number, 40, TICK, OFFSET)) for number in (4, 5)]
    with pytest.raises(ForeignWriteTime):
        ledger.delivered.write_progress(pipeline, 1, both)


def test_progress_of_newer_run_resists_older_run(ledger: Ledger, pipeline: str) -> None:
    newer, older = Progress(9, 90, TICK, OFFSET), Progress(5, 50, TICK, OFFSET, ((1, 1),))
    ledger.delivered.write_progress(pipeline, 7, [("order", "a", newer)])
    with pytest.raises(ForeignWriteTime):  # close then checks whether a later run has written
        ledger.delivered.write_progress(pipeline, 6, [("order", "a", older)])
    assert list(ledger.delivered.progress(pipeline, [("order", "a")])) == [newer]
    ledger.delivered.write_progress(pipeline, 8, [("order", "a", older)])
    assert list(ledger.delivered.progress(pipeline, [("order", "a")])) == [older]


def test_watermark_of_newer_run_resists_older_run(ledger: Ledger, pipeline: str) -> None:
    newer = Watermark("order", 2000, 7, 100, 3, datetime(2026, 11, 21, 7, tzinfo=UTC), 10, 2)
    ledger.delivered.write_watermark(pipeline, newer)
    with pytest.raises(ForeignWriteTime):
        ledger.delivered.write_watermark(
            pipeline, replace(newer, ticks=1000, run=6, delivered=1, long_look_at=None)
        )
    assert ledger.delivered.watermarks(pipeline) == {"order": newer}
    newest = replace(newer, ticks=3000, run=8)
    ledger.delivered.write_watermark(pipeline, newest)
    assert ledger.delivered.watermarks(pipeline) == {"order": newest}


def hold(persistence_id: str, **changes: Any) -> HoldRow:
    """Return a hold of a persistence_id in the tag 'order', with these changes."""
    since = datetime(2026, 11, 21, 7, tzinfo=UTC)
    return replace(
        HoldRow("order", persistence_id, "hole", Gap(4, 5, 30, 60), TICK, 2, 3, since, "f00"), **changes
    )


def test_watermarks_written_together_name_the_foreign_one(ledger: Ledger, pipeline: str) -> None:
    first = Watermark("a", 2000, 7, 100, 3, datetime(2026, 11, 21, 7, tzinfo=UTC), 10, 2)
    ledger.delivered.write_watermarks(pipeline, [])
    ledger.delivered.write_watermarks(pipeline, [first, replace(first, tag="b", run=9)])
    assert ledger.delivered.watermarks(pipeline) == {"a": first, "b": replace(first, tag="b", run=9)}
    later = [replace(first, tag=tag, run=8, ticks=2500) for tag in ("a", "b", "c")]
    with pytest.raises(ForeignWriteTime, match="watermark of tag 'b'"):
        ledger.delivered.write_watermarks(pipeline, later)
    assert ledger.delivered.watermarks(pipeline)["b"].ticks == 2000


def test_holds_of_all_shards_are_read(ledger: Ledger, pipeline: str) -> None:
    """Holds of two tags that lie in all shards are returned, each once."""
    names = [chr(ord("a") + number) for number in range(2 * HOLD_SHARDS)]
    opened = [replace(hold(name), tag=tag) for tag in ("order", "billing") for name in names]
    ledger.delivered.write_holds(pipeline, 1, opened)
    found = list(ledger.delivered.holds(pipeline, ["order", "billing", "none"]))
    assert {shard(one.persistence_id) for one in found} == set(range(HOLD_SHARDS))
    assert sorted((one.tag, one.persistence_id) for one in found) == sorted(
        (one.tag, one.persistence_id) for one in opened
    )


def test_holds_end_per_tag_and_persistence_id(ledger: Ledger, pipeline: str) -> None:
    holds = {f"o-{n}": hold(f"o-{n}") for n in range(40)}
    ledger.delivered.write_holds(pipeline, 3, holds.values())
    ledger.delivered.write_holds(pipeline, 3, [hold("o-1", tag="billing")])
    assert {h.persistence_id: h for h in ledger.delivered.holds(pipeline, ["order"])} == holds
    ledger.delivered.end_holds(pipeline, 4, [("order", "o-1"), ("order", "o-2"), ("order", "never")])
    assert {h.persistence_id for h in ledger.delivered.holds(pipeline, ["order"])} == set(holds) - {
        "o-1",
        "o-2",
    }
    assert [h.persistence_id for h in ledger.delivered.holds(pipeline, ["billing"])] == ["o-1"]


def test_hold_of_newer_run_resists_older_run(ledger: Ledger, pipeline: str) -> None:
    """Let an older run end a hold of a newer one and write one that a newer run has ended; both are
    refused.
    """
    ledger.delivered.write_holds(pipeline, 5, [hold("a")])
    with pytest.raises(ForeignWriteTime):
        ledger.delivered.end_holds(pipeline, 4, [("order", "a")])
    assert list(ledger.delivered.holds(pipeline, ["order"])) == [hold("a")]
    ledger.delivered.end_holds(pipeline, 6, [("order", "a")])
    with pytest.raises(ForeignWriteTime):
        ledger.delivered.write_holds(pipeline, 5, [hold("a")])
    assert list(ledger.delivered.holds(pipeline, ["order"])) == []
    ledger.delivered.write_holds(pipeline, 7, [hold("a", held_rows=9)])
    assert list(ledger.delivered.holds(pipeline, ["order"])) == [hold("a", held_rows=9)]


def test_buckets_are_kept_with_scan_mark(ledger: Ledger, pipeline: str) -> None:
    assert ledger.delivered.known_buckets(pipeline, "order") == (None, [])
    ledger.delivered.keep_buckets(pipeline, "order", [], 60)
    assert ledger.delivered.known_buckets(pipeline, "order") == (60, [])
    ledger.delivered.keep_buckets(pipeline, "order", [120, 60], 180)
    assert ledger.delivered.known_buckets(pipeline, "order") == (180, [60, 120])


def test_interventions_are_the_newest_first(ledger: Ledger, pipeline: str) -> None:
    for run in (1, 3, 2):
        ledger.record_intervention(pipeline, run, "ada", f"run abandon {run}", "wrong tags")
    assert [(i.run, i.who, i.why) for i in ledger.interventions(pipeline)] == [
        (n, "ada", "wrong tags") for n in (3, 2, 1)
    ]


@pytest.mark.parametrize("missing", [(), ((1, 4),), ((1, 4), (9, 9), (11, 10**12))])
def test_intervals_survive_as_text(missing: tuple[tuple[int, int], ...]) -> None:
    assert read_intervals(write_intervals(missing)) == missing


@pytest.mark.parametrize(("persistence_id", "expected"), [("", 0), ("a", 1), ("order-7", 0), ("ü", 15)])
def test_shard_of_persistence_id_never_changes(persistence_id: str, expected: int) -> None:
    assert shard(persistence_id) == expected


# -- Cassandra's own view of the bounds


def test_timeuuid_bounds_equal_cassandras(ledger: Ledger) -> None:
    tick = timeuuid.from_datetime(datetime(2026, 11, 21, 7, tzinfo=UTC))
    (row,) = ledger.cassandra.execute(
        "SELECT minTimeuuid('2026-11-21 07:00:00+0000') AS low, maxTimeuuid('2026-11-21 07:00:00+0000') "
        "AS high FROM system.local"
    )
    assert timeuuid.lowest(tick) == row.low
    assert timeuuid.highest(tick + timeuuid.TICKS_PER_MILLISECOND - 1) == row.high


# -- random steps in random order


class LedgerMachine(RuleBasedStateMachine):
    """Steps with current and outdated fences and expectations: the ledger moves as the states allow, or not
    at all.
    """

    ledger: Ledger
    numbers = count()

    @initialize()
    def start(self) -> None:
        self.pipeline = f"m_{next(self.numbers)}_{uuid4().hex[:6]}"
        self.run = 1
        self.row = planned(self.ledger, self.pipeline)
        self.fences = [1]
        self.batches: dict[int, tuple[BatchState, int]] = {}

    def attempt(self, fence: int, step: Callable[[], Any], *, possible: bool) -> bool:
        """Run a step and assert that it succeeds exactly if the fence is in force and its expectation is
        true.
        """
        try:
            done = step() is not False
        except FenceRaised:
            done = False
        assert done == (possible and fence == self.fences[-1])
        return done

    @rule()
    def take_over(self) -> None:
        self.row = self.ledger.raise_fence(
            self.ledger.current(self.pipeline, self.run, self.fences[-1]), "other"
        )
        self.fences.append(self.row.fence)

    @rule(late=st.booleans(), batches=st.integers(0, 3))
    def seal(self, late: bool, batches: int) -> None:
        fence = self.fences[0 if late else -1]
        name = f"{uuid4().hex}.json"
        planned_now = self.row.state == RunState.PLANNED
        if self.attempt(
            fence, lambda: self.ledger.seal(self.pipeline, self.run, fence, name, "aa"), possible=planned_now
        ):
            self.row = replace(self.row, state=RunState.SEALED, manifest_file=name)
            self.batches = {n: (BatchState.NEW, 1) for n in range(1, batches + 1)}
            self.add_batches()

    @precondition(lambda self: self.row.state == RunState.SEALED)
    @rule()
    def add_batches(self) -> None:
        self.ledger.add_batches(self.pipeline, self.run, [(n, BATCH, "order", n, n) for n in self.batches])

    @precondition(lambda self: self.batches)
    @rule(late=st.booleans(), data=st.data(), move=st.sampled_from(sorted(BATCH_MOVES)))
    def move_batch(self, late: bool, data: Any, move: tuple[BatchState, BatchState]) -> None:
        number = data.draw(st.sampled_from(sorted(self.batches)))
        fence, (old, new), (state, generation) = self.fences[0 if late else -1], move, self.batches[number]
        believed = next(b for b in self.ledger.batches(self.pipeline, self.run) if b.number == number)
        believed = replace(believed, state=old)
        wanted = generation + 1 if new == BatchState.NEW else generation
        # A move that has already happened counts as done, so that a step whose answer was lost may repeat it.
        possible = old == state or (new, wanted) == (state, generation)
        if self.attempt(
            fence,
            lambda: self.ledger.move_batch(self.pipeline, self.run, fence, believed, new, wanted),
            possible=possible,
        ):
            assert (state, generation) == (new, wanted) or may_move_batch(state, new)
            self.batches[number] = (new, wanted)

    @rule(
        late=st.booleans(),
        end=st.sampled_from([(RunState.PLANNED, RunState.ABANDONED), (RunState.SEALED, RunState.CLOSED)]),
    )
    def finish(self, late: bool, end: tuple[RunState, RunState]) -> None:
        fence, (old, new) = self.fences[0 if late else -1], end
        possible = self.row.state in (old, new)
        if self.attempt(
            fence, lambda: self.ledger.finish_run(self.pipeline, self.run, fence, old, new), possible=possible
        ):
            assert self.row.state == new or may_move_run(self.row.state, new)
            self.row = replace(self.row, state=new)

    @precondition(lambda self: not self.row.state.is_open)
    @rule()
    def next_run(self) -> None:
        self.run += 1
        self.row = planned(self.ledger, self.pipeline, self.run)
        self.fences, self.batches = [1], {}

    @invariant()
    def the_ledger_says_what_was_done(self) -> None:
        """Assert that run and batches in the ledger equal those of the model."""
        found = self.ledger.run(self.pipeline, self.run)
        assert found is not None
        assert (found.state, found.fence, found.manifest_file) == (
            self.row.state,
            self.fences[-1],
            self.row.manifest_file,
        )
        batches = {b.number: (b.state, b.generation) for b in self.ledger.batches(self.pipeline, self.run)}
        assert batches == self.batches


def test_ledger_random_steps_follow_allowed_moves(ledger: Ledger) -> None:
    """Run random sequences of steps against a model of the allowed moves."""
    machine = type("Machine", (LedgerMachine,), {"ledger": ledger})
    run_state_machine_as_test(
        machine,
        settings=hypothesis_settings(
            max_examples=25, stateful_step_count=20, suppress_health_check=list(HealthCheck), print_blob=False
        ),
    )


# -- plans of erasures


def erasing(ledger: Ledger, journal: str, erasure: int, sha256: str) -> ErasureRow:
    """Return the row of an erasure that begins."""
    now = ledger.cassandra.now()
    return ErasureRow(
        journal, erasure, ErasureState.ERASING, "a", "w", "y", 1, {"events": 1}, None, sha256, now, None
    )


def test_erasure_plan_is_whole_or_refused(ledger: Ledger, pipeline: str) -> None:
    """Read a plan of several parts while its erasure is under way; refuse it when a part is lost."""
    erasures = Erasures(ledger.cassandra, KEYSPACE, pipeline)
    plans = ErasurePlans(ledger.cassandra, KEYSPACE, erasures)
    content = secrets.token_bytes(2 * PART_BYTES + 1)
    row = erasing(ledger, pipeline, 1, plans.write(1, content))
    erasures.begin(row)
    erasures.begin(row)  # as after a lost answer
    other = plans.write(1, b"of a process that was too late")
    plans.remove("b")
    assert plans.read(row) == content
    with pytest.raises(FenceRaised):
        erasures.begin(replace(row, plan_sha256=other))
    with pytest.raises(FenceRaised):
        erasures.next_number()
    part = f"journal = '{pipeline}' AND erasure = 1 AND plan_sha256 = '{row.plan_sha256}' AND part = "
    for lost in (2, 0, 1):
        ledger.cassandra.execute(f"DELETE FROM {KEYSPACE}.erasure_plans WHERE {part}{lost}")
        with pytest.raises(TerminalError, match="plan of erasure 1.*is not the one.*Nothing more was erased"):
            plans.read(row)
    erasures.finish(row, ["p"])
    plans.remove("a")
    left = ledger.cassandra.execute(f"SELECT * FROM {KEYSPACE}.erasure_plans WHERE journal = ?", pipeline)
    assert left == [] and erasures.next_number() == 2


def test_removed_erasure_plan_never_begins(ledger: Ledger, pipeline: str) -> None:
    """Refuse the record of a process that slept after writing its plan, once another has removed the plan."""
    erasures = Erasures(ledger.cassandra, KEYSPACE, pipeline)
    plans = ErasurePlans(ledger.cassandra, KEYSPACE, erasures)
    slept = erasing(ledger, pipeline, erasures.next_number(), plans.write(1, b"plan"))
    plans.remove("b")
    with pytest.raises(FenceRaised):
        erasures.begin(slept)
    with pytest.raises(TerminalError):
        plans.read(slept)
    (row,) = erasures.newest(9)
    assert (row.state, row.persistence_ids, row.counts) == (ErasureState.ERASED, 0, {})
    assert erasures.next_number() == 2
    plans.remove("b")
    assert len(erasures.newest(9)) == 1


def test_attempts_only_killed_ones_stay_counted(configured: CassandraSettings, ledger: Ledger) -> None:
    """End attempts in every way: those that end in order are taken back, and none takes back another's."""
    settings, name = Settings.model_validate({"cassandra": configured.model_dump()}), "counted"
    attempts = Attempts(ledger.cassandra, KEYSPACE, name)

    def end(by: BaseException) -> None:
        with pytest.raises(type(by)), counted(settings, ledger.cassandra, name, "plan"):
            raise by

    def begun() -> int:
        return sum(one.begun for one in unended(ledger.cassandra, KEYSPACE, name))

    for orderly in (ValueError(), FenceRaised("x"), KeyboardInterrupt()):
        end(orderly)
    assert begun() == 0
    end(SystemExit())
    asleep = attempts.begin("plan")
    end(ValueError())
    assert begun() == 2
    at_work = attempts.begin("plan")
    for succeeded in (True, False):  # a process that wakes up late
        attempts.end(asleep, succeeded=succeeded)
    assert begun() == 3
    attempts.end(at_work, succeeded=True)
    assert begun() == 0
    with counted(settings, ledger.cassandra, name, ""):
        assert begun() == 0
    # A ledger of an earlier release has no such table.
    earlier = settings.model_copy(
        update={"cassandra": configured.model_copy(update={"ledger_keyspace": "system"})}
    )
    with counted(earlier, ledger.cassandra, name, "plan"):
        assert unended(ledger.cassandra, "system", name) == ()


# -- cleanups of a view whose buckets changed their size

MINUTES, HOURS, DAYS = (
    View(table, size)
    for table, size in (
        ("tag_views", BucketSize.MINUTE),
        ("tag_views_hour", BucketSize.HOUR),
        ("tag_views_day", BucketSize.DAY),
    )
)
DAY = 1_795_219_200_000


class Cleaner:
    """The cleanups of one journal, whose view is moved to other tables in between."""

    def __init__(self, ledger):
        self.ledger, self.journal = ledger, f"j_{secrets.token_hex(4)}"
        self.view = MINUTES

    @property
    def log(self):
        return CleanupLog(self.ledger.cassandra, self.ledger.ledger_keyspace, self.journal, self.view)

    def rebucket(self, target):
        views = JournalViews(self.ledger.cassandra, self.ledger.ledger_keyspace, self.journal)
        views.switch(views.begin(views.take_over("o", self.view), target))
        self.view = target

    def clean(self, timebucket, rows):
        """Delete a partition with so many rows, as a cleanup does."""
        cleaning = Cleaning("t", timebucket, self.log.rows_before("t", timebucket) + rows, datetime.now(UTC))
        self.log.decide("p", cleaning)
        assert self.log.rows_before("t", timebucket) is None
        self.log.done("p", cleaning)

    def total(self, from_bucket=DAY):
        return self.log.total("t", first_ticks(from_bucket))


def test_cleanups_in_larger_buckets_count_once(ledger):
    """Clean minutes, then their hour, then its day, with late rows in between: each row counts once."""
    cleaner = Cleaner(ledger)
    minute, hour = BucketSize.MINUTE.milliseconds, BucketSize.HOUR.milliseconds
    cleaner.clean(DAY, 10)
    cleaner.clean(DAY, 1)
    cleaner.clean(DAY + minute, 20)
    cleaner.clean(DAY + hour, 40)
    cleaner.rebucket(HOURS)
    assert (cleaner.log.rows_before("t", DAY), cleaner.total()) == (31, 71)
    cleaner.clean(DAY, 100)
    assert (cleaner.log.rows_before("t", DAY), cleaner.total()) == (131, 171)
    assert cleaner.total(DAY + hour) == 40
    cleaner.clean(DAY, 3)
    assert (cleaner.log.rows_before("t", DAY), cleaner.total()) == (134, 174)
    cleaner.rebucket(DAYS)
    assert (cleaner.log.rows_before("t", DAY), cleaner.total()) == (174, 174)
    cleaner.clean(DAY, 1000)
    assert (cleaner.log.rows_before("t", DAY), cleaner.total()) == (1174, 1174)
    cleaner.clean(DAY + DAYS.size.milliseconds, 5)
    assert cleaner.total() == 1179


def test_cleanups_after_rebucket_back_count_once(ledger):
    """Clean a minute, its hour, and the minute again under its old name: each row counts once."""
    cleaner = Cleaner(ledger)
    cleaner.clean(DAY, 10)
    cleaner.rebucket(HOURS)
    cleaner.clean(DAY, 100)
    cleaner.rebucket(MINUTES)
    assert (cleaner.log.rows_before("t", DAY), cleaner.total()) == (0, 110)
    cleaner.clean(DAY, 5)
    assert (cleaner.log.rows_before("t", DAY), cleaner.total()) == (5, 115)
    cleaner.rebucket(HOURS)
    assert (cleaner.log.rows_before("t", DAY), cleaner.total()) == (115, 115)
    cleaner.clean(DAY, 2)
    assert (cleaner.log.rows_before("t", DAY), cleaner.total()) == (117, 117)
