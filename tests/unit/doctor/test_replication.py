"""A keyspace's replication against the consistency of its reads."""

import pytest

from tagmill.doctor.model import Level
from tagmill.doctor.replication import Nodes, judge, judge_ledger, judge_planned

KEY = "cassandra.read_consistency"
ONE_NODE = Nodes("east", {"east": 1}, {"east": 1})
THREE_NODES = Nodes("east", {"east": 3}, {"east": 3})
TWO_OF_THREE_DOWN = Nodes("east", {"east": 3}, {"east": 1})
TWO_DATACENTERS = Nodes("east", {"east": 3, "west": 3}, {"east": 3, "west": 3})


def simple(factor: int) -> dict[str, str]:
    return {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": str(factor)}


def by_name(**factors: int) -> dict[str, str]:
    return {"class": "NetworkTopologyStrategy", **{name: str(factor) for name, factor in factors.items()}}


@pytest.mark.parametrize(
    ("options", "consistency", "nodes", "level", "words"),
    [
        (simple(1), "LOCAL_QUORUM", ONE_NODE, Level.FINE, "orders in east: 1; reads at LOCAL_QUORUM need 1"),
        (simple(1), "ONE", ONE_NODE, Level.FINE, "need 1"),
        (simple(1), "THREE", ONE_NODE, Level.WRONG, "need 3"),
        (by_name(east=3), "LOCAL_QUORUM", THREE_NODES, Level.FINE, "need 2"),
        (by_name(east=3), "LOCAL_QUORUM", TWO_OF_THREE_DOWN, Level.WRONG, "up: 1"),
        (by_name(east=3), "ONE", THREE_NODES, Level.WARNING, "overlap only writes at ALL"),
        (by_name(east=3), "LOCAL_ONE", TWO_OF_THREE_DOWN, Level.WARNING, "overlap only writes at ALL"),
        (by_name(east=3), "ALL", TWO_OF_THREE_DOWN, Level.WRONG, "need 3"),
        (by_name(west=3), "LOCAL_QUORUM", TWO_DATACENTERS, Level.WRONG, "no replica in datacenter east"),
        (by_name(east=3, west=3), "QUORUM", TWO_DATACENTERS, Level.FINE, "need 4"),
        (by_name(east=3, west=3), "EACH_QUORUM", TWO_DATACENTERS, Level.FINE, "need 2"),
        (by_name(replication_factor=3), "LOCAL_QUORUM", TWO_DATACENTERS, Level.FINE, "east: 3"),
        (simple(3), "LOCAL_QUORUM", TWO_DATACENTERS, Level.WARNING, "don't overlap"),
        (
            {"class": "NetworkTopologyStrategy", "east": "3/1"},
            "LOCAL_QUORUM",
            THREE_NODES,
            Level.FINE,
            "need 2",
        ),
    ],
)
def test_consistency_is_judged_by_replicas(options, consistency, nodes, level, words) -> None:
    found = judge("a check", "orders", options, consistency, KEY, nodes)
    assert (found.level, words in found.said) == (level, True), found
    assert bool(found.cure) == (level is not Level.FINE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (by_name(east=3), None),
        (by_name(est=3), "names est"),
        (by_name(west=3), "gives east no replica"),
        (simple(1), None),
    ],
    ids=["right", "misspelt", "elsewhere", "simple"],
)
def test_planned_replication_names_unknown_datacenters(options, words) -> None:
    found = judge_planned(options, "tagmill", TWO_DATACENTERS)
    assert (
        (found is None)
        if words is None
        else (found and words in found.said and "cassandra.replication" in found.cure)
    )


def test_ledger_on_one_of_three_warns() -> None:
    assert judge_ledger("tagmill", simple(1), ONE_NODE) is None
    assert judge_ledger("tagmill", by_name(east=3), THREE_NODES) is None
    found = judge_ledger("tagmill", simple(1), THREE_NODES)
    assert found and found.level is Level.WARNING and "ALTER KEYSPACE tagmill" in found.cure
