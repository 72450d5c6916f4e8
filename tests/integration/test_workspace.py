"""Workspaces on a real Cassandra: which leases they hold, how long, and what is noted of a step."""

import pytest

from tagmill.errors import ConfigurationError, LeaseTaken, TerminalError, TransientError
from tagmill.ledger import schema
from tagmill.ledger.failures import Failures
from tagmill.ledger.lease import Lease
from tagmill.runs.workspace import open_step, open_workspace
from tests.support.delivery import only
from tests.support.leases import free_lease

OWNER = "test/one"


@pytest.fixture(scope="module")
def configured(stack, module_settings):
    """Return a configuration of one pipeline, with a ledger."""
    made = module_settings("t_workspace", case="gap-middle")
    schema.apply(made)
    return made


@pytest.fixture
def holder(stack, configured):
    """Yield holder(name), which returns the owner of a lease, and give the pipeline's back afterwards."""
    name, seconds = only(configured), 30
    with open_workspace(configured, name) as workspace:
        lease = lambda each: Lease(workspace.cassandra, workspace.ledger_keyspace, each, OWNER, seconds)  # noqa: E731
        yield lambda each=name: lease(each).holder()
    free_lease(stack.session, name)


def test_workspace_without_leases_takes_none(configured, holder):
    with open_workspace(configured, only(configured), owner=OWNER) as workspace:
        assert workspace.leases == () and holder() is None


@pytest.mark.parametrize("error", [None, TransientError, TerminalError, ValueError])
def test_workspace_gives_all_leases_back(configured, holder, error):
    """Hold a lease that is no pipeline's beside the pipeline's, until the block ends or raises."""
    names = [f"{only(configured)}/audit", only(configured)]

    def work():
        with open_workspace(configured, only(configured), owner=OWNER, leases=names):
            assert [holder(name) for name in names] == [OWNER, OWNER]
            if error:
                raise error("stopped here")

    if error:
        with pytest.raises(error, match="stopped here"):
            work()
    else:
        work()
    assert [holder(name) for name in names] == [None, None]


def test_workspace_gives_first_back_if_second_is_taken(configured, holder):
    name = only(configured)
    with (
        open_workspace(configured, name, owner="test/other", leases=[name]),
        pytest.raises(LeaseTaken, match="test/other is at work"),
        open_workspace(_impatient(configured), name, owner=OWNER, leases=[f"{name}/audit", name]),
    ):
        pytest.fail("opened under a lease that another owner holds")
    assert holder(f"{name}/audit") is None


@pytest.mark.parametrize(
    "error, kept",
    [(None, OWNER), (TransientError, OWNER), (TerminalError, None)],
    ids=["done", "passing", "final"],
)
def test_step_keeps_lease_unless_error_is_final(configured, holder, error, kept):
    """Note the failure of a step, and leave the lease to the next step or the retry."""

    def work():
        with open_step(configured, only(configured), owner=OWNER, step="seal", run=7) as workspace:
            workspace.store(Failures).clear()
            if error:
                raise error("stopped here")

    if error:
        with pytest.raises(error) as raised:
            work()
        assert (raised.value.pipeline, raised.value.run) == (only(configured), 7)
    else:
        work()
    assert holder() == kept
    with open_workspace(configured, only(configured)) as workspace:
        failure = workspace.store(Failures).current()
    assert (
        (failure.step, failure.run, failure.error) == ("seal", 7, "stopped here")
        if error
        else failure is None
    )


def test_step_gives_lease_back_when_told(configured, holder):
    with open_step(configured, only(configured), owner=OWNER) as workspace:
        assert holder() == OWNER
        workspace.give_back()
    assert holder() is None


def test_unknown_pipeline_is_refused_before_leases(configured, holder):
    with (
        pytest.raises(ConfigurationError, match="'nowhere' is not in the configuration"),
        open_step(configured, "nowhere", owner=OWNER),
    ):
        pytest.fail("opened for a pipeline that is not configured")
    assert holder("nowhere") is None


def _impatient(configured):
    name = only(configured)
    pipeline = configured.pipeline(name).model_copy(update={"lease_wait_seconds": 0})
    return configured.model_copy(update={"pipelines": {name: pipeline}})
