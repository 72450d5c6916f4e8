"""An audit that is killed at announced instants leaves nothing that the next one believes; that one has a number of its own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import Delivery


@pytest.mark.timeout(900)
def test_killed_and_started_again_it_says_what_an_undisturbed_one_says(delivery: Callable[..., Delivery]) -> None:
    audited = delivery("partition-boundary")
    for instant in ("audit.view_read", "audit.before_end"):
        audited.start("audit", at=instant).kill()
    home = Path(audited.settings.storage.root) / audited.pipeline / "audit"
    assert [folder.name for folder in home.iterdir()] == ["00000002"], "the first one's files are swept by the second one"
    ended = audited.start("audit", "--json").end()
    assert ended.code == 0, ended
    report = json.loads(ended.out)
    assert (report["audit"], report["agrees"]) == (3, True)
    assert sum(line["view"] for line in report["tags"]) == 2 * 864
    assert [folder.name for folder in home.iterdir()] == ["00000003"]
    listed = json.loads(audited.said("audits", "--json").out)
    assert [(row["audit"], row["state"], row["agrees"]) for row in listed] == [
        (3, "DONE", True),
        (2, "RUNNING", None),
        (1, "RUNNING", None),
    ]
