"""Kill the whole process group, JVM included, by SIGKILL at announced instants, or crash it there; then run the
command again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

INSTANTS = [
    "plan.before_commit", "plan.after_commit",
    "seal.staged", "seal.judged", "seal.cut", "seal.before_commit", "seal.after_commit",
    "push.before_batch", "push.before_insert", "push.after_insert", "push.after_batch",
    "close.before_progress", "close.after_progress", "close.before_watermarks", "close.before_end",
]  # fmt: skip
# Here a kill leaves most behind: a sealed file, an insert, or progress that the ledger does not know of yet.
KILLED = ("seal.before_commit", "push.after_insert", "close.after_progress")


def test_the_list_of_instants_is_complete() -> None:
    """Compare the instants that the sources announce with those at which some test kills or crashes."""
    import re
    from pathlib import Path

    import tagmill

    sources = Path(tagmill.__file__).parent.rglob("*.py")
    found = {
        name
        for file in sources
        for name in re.findall(r'checkpoints\.reached\("([^"]+)"\)', file.read_text())
    }
    others = [
        file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py") if file != Path(__file__)
    ]
    killed = {*INSTANTS, *(name for name in found if any(f'"{name}"' in text for text in others))}
    # At these instants an audit has written nothing that another audit reads.
    assert found - killed == {"audit.begun", "audit.journal_read", "audit.judged"}
    assert killed <= found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "killed", [pytest.param(KILLED, id="some"), pytest.param(INSTANTS, id="all", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("small_run_rows", [50_000, 0], ids=["here", "by Spark"])
def test_run_killed_at_each_instant_delivers_once(
    small_run_rows: int,
    killed: Sequence[str],
    delivery: Callable[..., Any],
    undisturbed: Callable[[str], Any],
) -> None:
    """Kill or crash a run at each instant in turn; each restart continues at once, because the dead owner's
    lease is free.
    """
    disturbed = delivery("gap-middle", small_run_rows=small_run_rows)
    for instant in INSTANTS:
        if instant in killed:
            disturbed.deliver(at=instant).kill()
        else:
            disturbed.crash("run", "deliver", at=instant)
    disturbed.finish()
    undisturbed("gap-middle").equals(disturbed)
    assert disturbed.check().code == 0


@pytest.mark.long
def test_later_run_killed_at_instants_delivers_once(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Kill the second run of a capped pipeline, which has progress and watermarks before it, and several
    batches a tag.
    """
    disturbed = delivery("minute-buckets", max_slices_per_run=10, batch_rows=60)
    assert disturbed.deliver("--max-runs", "1").end().code == 0
    first = disturbed.rows()
    for instant in ("seal.cut", "push.after_insert", "push.after_batch", "close.after_progress"):
        disturbed.deliver(at=instant).kill()
    assert 0 < len(first) < len(disturbed.rows())
    disturbed.finish()
    undisturbed("minute-buckets").equals(disturbed)
    assert disturbed.check().code == 0
