"""Judge a keyspace's replication against the consistency of its reads. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from tagmill.doctor.model import Finding, fine, warning, wrong

# Nodes of a datacenter from which on one replica of the ledger is a risk that nobody has to take.
NODES_FOR_THREE = 3


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of Cassandra by datacenter: how many there are, and how many are up."""

    local: str
    all: Mapping[str, int]
    up: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a keyspace by datacenter; those of a SimpleStrategy count as the local datacenter's."""

    strategy: str
    by_datacenter: Mapping[str, int]

    @classmethod
    def of(cls, options: Mapping[str, str], nodes: Nodes) -> "Replicas":
        """Return the replicas of a replication map, as CREATE KEYSPACE takes it."""
        strategy = options["class"].rpartition(".")[2]
        if strategy == "NetworkTopologyStrategy":
            factors = {name: _factor(text) for name, text in options.items() if name != "class"}
            if (everywhere := factors.pop("replication_factor", None)) is not None:
                factors = {**dict.fromkeys(nodes.all, everywhere), **factors}
            return cls(strategy, factors)
        return cls(strategy, {nodes.local: _factor(options.get("replication_factor", "1"))})

    @property
    def total(self) -> int:
        """The replicas in all datacenters."""
        return sum(self.by_datacenter.values())

    def needed(self, consistency: str, local: str) -> int:
        """Return how many replicas have to answer a read, in the local datacenter or in all of them."""
        here = self.by_datacenter.get(local, 0)
        quorums = {"QUORUM": self.total // 2 + 1, "LOCAL_QUORUM": here // 2 + 1, "EACH_QUORUM": here // 2 + 1}
        return {"ONE": 1, "LOCAL_ONE": 1, "TWO": 2, "THREE": 3, "ALL": self.total, **quorums}[consistency]


def _factor(text: str) -> int:
    """Return a factor; of one with transient replicas ("3/1") the first number."""
    return int(text.partition("/")[0])


def judge(
    check: str, keyspace: str, options: Mapping[str, str], consistency: str, key: str, nodes: Nodes
) -> Finding:
    """Return the finding for a keyspace.

    Args:
        check: name of the check.
        keyspace: its name.
        options: its replication map.
        consistency: of the reads.
        key: of the configuration that sets it.
        nodes: of the cluster.
    """
    replicas = Replicas.of(options, nodes)
    here, local = replicas.by_datacenter.get(nodes.local, 0), nodes.local
    alter = f"ALTER KEYSPACE {keyspace} WITH replication = …"
    if not here:
        others = ", ".join(name for name, factor in replicas.by_datacenter.items() if factor) or "none"
        cure = f"correct cassandra.local_datacenter, or {alter}"
        return wrong(
            check, f"keyspace {keyspace} has no replica in datacenter {local} (replicas in: {others})", cure
        )
    needed = replicas.needed(consistency, local)
    in_reach = here if "LOCAL" in consistency or consistency == "EACH_QUORUM" else replicas.total
    said = f"replicas of keyspace {keyspace} in {local}: {here}; reads at {consistency} need {needed}"
    if needed > in_reach:
        return wrong(check, said, f'set {key} = "LOCAL_QUORUM", or {alter}')
    up = nodes.up.get(local, 0) if in_reach == here else sum(nodes.up.values())
    if needed > up:
        return wrong(check, f"{said}, nodes that are up: {up}", "start the nodes that are down")
    if needed <= here // 2 and here > 1:
        cure = f'set {key} = "LOCAL_QUORUM", unless the application writes at ALL'
        return warning(check, f"{said}: they overlap only writes at ALL", cure)
    if replicas.strategy == "SimpleStrategy" and len(nodes.all) > 1:
        return warning(
            check,
            f"keyspace {keyspace} has SimpleStrategy in {len(nodes.all)} datacenters: quorums of one datacenter don't overlap",
            f"{alter} with NetworkTopologyStrategy",
        )
    return fine(check, said)


def judge_planned(options: Mapping[str, str], keyspace: str, nodes: Nodes) -> Finding | None:
    """Return a finding if a keyspace that `schema apply` would create could not be written to; else None."""
    check, replicas = f"keyspace {keyspace}: replication", Replicas.of(options, nodes)
    unknown = [name for name in replicas.by_datacenter if name not in nodes.all]
    if unknown or not replicas.by_datacenter.get(nodes.local):
        said = f"cassandra.replication gives {nodes.local} no replica" + (
            f", and names {', '.join(unknown)}" if unknown else ""
        )
        there = ", ".join(nodes.all)
        return wrong(check, f"{said} (datacenters: {there})", "correct cassandra.replication")
    return None


def judge_ledger(keyspace: str, options: Mapping[str, str], nodes: Nodes) -> Finding | None:
    """Return a warning if one lost node would lose the ledger though there are nodes enough; else None."""
    replicas = Replicas.of(options, nodes)
    if replicas.total > 1 or nodes.all.get(nodes.local, 0) < NODES_FOR_THREE:
        return None
    return warning(
        f"keyspace {keyspace}: replication",
        f"one replica on {nodes.all[nodes.local]} nodes: a lost node is a lost ledger",
        f"ALTER KEYSPACE {keyspace} WITH replication = … with factor 3, then nodetool repair",
    )
