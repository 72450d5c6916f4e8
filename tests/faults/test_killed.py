"""SIGKILL from outside to the whole process group, JVM included, at announced instants; then the command again."""

from collections.abc import Callable
from typing import Any

import pytest

INSTANTS = [
    "plan.before_commit", "plan.after_commit",
    "seal.staged", "seal.judged", "seal.cut", "seal.before_commit", "seal.after_commit",
    "push.before_batch", "push.before_insert", "push.after_insert", "push.after_batch",
    "close.before_progress", "close.after_progress", "close.before_end",
]  # fmt: skip


def test_the_list_of_instants_is_complete() -> None:
    import re
    from pathlib import Path

    import tagmill

    sources = Path(tagmill.__file__).parent.rglob("*.py")
    found = {name for file in sources for name in re.findall(r'checkpoints\.reached\("([^"]+)"\)', file.read_text())}
    others = [file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py") if file != Path(__file__)]
    killed = {*INSTANTS, *(name for name in found if any(f'"{name}"' in text for text in others))}
    # an audit writes nothing there that another one looks at
    assert found - killed == {"audit.begun", "audit.journal_read", "audit.judged"}
    assert killed <= found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", ["gap-middle"])
def test_killed_at_every_instant_of_its_life_a_run_delivers_the_rows_of_an_undisturbed_one(
    case: str, delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Each restart goes on at once (the dead owner's lease is free), and is killed, or crashes, at the next instant."""
    disturbed = delivery(case)
    for instant in INSTANTS:
        if instant in ("seal.judged", "seal.cut"):
            disturbed.crash("run", "deliver", at=instant)
        else:
            disturbed.deliver(at=instant).kill()
    disturbed.finish()
    undisturbed(case).equals(disturbed)
    assert disturbed.check().code == 0


@pytest.mark.long
def test_killed_in_a_later_run_it_delivers_the_rows_of_an_undisturbed_one(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """A capped pipeline: the second run has progress and watermarks before it, and several batches a tag."""
    disturbed = delivery("minute-buckets", max_slices_per_run=10, batch_rows=60)
    assert disturbed.deliver("--max-runs", "1").end().code == 0
    first = disturbed.rows()
    for instant in ("seal.cut", "push.after_insert", "push.after_batch", "close.after_progress"):
        disturbed.deliver(at=instant).kill()
    assert 0 < len(first) < len(disturbed.rows())
    disturbed.finish()
    undisturbed("minute-buckets").equals(disturbed)
    assert disturbed.check().code == 0
