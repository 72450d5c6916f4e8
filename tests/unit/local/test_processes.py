"""How the processes of the stack are started."""

import subprocess
import sys

import pytest

from local.processes import timer_slack


def slack_of_a_child():
    """Return the timer slack of a process that is started now, in nanoseconds."""
    read = "print(open('/proc/self/timerslack_ns').read())"
    return int(subprocess.run([sys.executable, "-c", read], capture_output=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a timer slack")
def test_timer_slack_is_that_of_processes_started_meanwhile():
    before = slack_of_a_child()
    with timer_slack(200):
        assert slack_of_a_child() == 200_000
        with timer_slack(0):
            assert slack_of_a_child() == 200_000
    assert slack_of_a_child() == before
