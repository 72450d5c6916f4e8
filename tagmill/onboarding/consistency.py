"""Say how the ledger is replicated and how a journal is read, by the journal's own replication. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

SIMPLE, NETWORK = "SimpleStrategy", "NetworkTopologyStrategy"
# Consistency with which the plugin writes and reads unless it is told otherwise.
PLUGIN_DEFAULT = "QUORUM"
# Consistency of reads that overlaps writes of a consistency, in one datacenter and in several.
OVERLAPPING = {
    "ONE": ("ALL", "ALL"),
    "LOCAL_ONE": ("ALL", "ALL"),
    "TWO": ("ALL", "ALL"),
    "LOCAL_QUORUM": ("LOCAL_QUORUM", "LOCAL_QUORUM"),
    "QUORUM": ("LOCAL_QUORUM", "QUORUM"),
    "EACH_QUORUM": ("LOCAL_QUORUM", "LOCAL_QUORUM"),
    "ALL": ("LOCAL_ONE", "LOCAL_ONE"),
}


@dataclass(frozen=True, slots=True)
class Replication:
    """The replication of a keyspace: its strategy, and its copies by datacenter ("" with SimpleStrategy)."""

    strategy: str
    factors: Mapping[str, int]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Replication":
        """Read the map that Cassandra's schema has; of transient replicas only the number of copies."""
        factors = {
            "" if name == "replication_factor" else name: int(str(factor).partition("/")[0])
            for name, factor in options.items()
            if name != "class"
        }
        return cls(options.get("class", "").rpartition(".")[2], factors)

    def options(self) -> dict[str, str | int]:
        """Return the value of the key `replication`."""
        return {
            "class": self.strategy,
            **{name or "replication_factor": factor for name, factor in self.factors.items()},
        }

    def __str__(self) -> str:
        """Return strategy and copies, as the file's comments have them."""
        copies = ", ".join(f"{name or 'copies'} {factor}" for name, factor in sorted(self.factors.items()))
        return f"{self.strategy} ({copies})"


def for_ledger(journal: Replication | None, nodes: Mapping[str, int], local_datacenter: str) -> Replication:
    """Return the replication to propose for the ledger's keyspace.

    It is the journal's where that can be used, for the ledger is worth as much. Otherwise it has up to three
    copies in the local datacenter.

    Args:
        journal: replication of the journal's keyspace; None: there is none.
        nodes: number of nodes by datacenter.
        local_datacenter: the one that Tagmill connects to.
    """
    if journal and journal.strategy in (SIMPLE, NETWORK) and journal.factors:
        here = local_datacenter if journal.strategy == NETWORK else ""
        if journal.factors.get(here):
            return journal
    of_local = nodes.get(local_datacenter, 1)
    if of_local == 1 and len(nodes) <= 1:
        return Replication(SIMPLE, {"": 1})
    return Replication(NETWORK, {local_datacenter: min(3, of_local)})


def must_ask(journal: Replication | None) -> bool:
    """Return whether the consistency of the application's writes decides how its tables must be read."""
    return journal is not None and sum(1 for factor in journal.factors.values() if factor) > 1


def reads_for(writes: str, journal: Replication | None, local_datacenter: str) -> str:
    """Return the consistency of reads that overlaps writes of this consistency.

    LOCAL_QUORUM in several datacenters overlaps only what is written in the local one. A journal without a
    copy in the local datacenter can't be read at a local consistency at all.
    """
    of_one, of_several = OVERLAPPING[writes]
    if journal and journal.strategy == NETWORK and not journal.factors.get(local_datacenter):
        return "QUORUM" if of_several.startswith("LOCAL") else of_several
    return of_several if must_ask(journal) else of_one


def warnings(journal: Replication | None, local_datacenter: str) -> list[str]:
    """Return what is weak or wrong about a journal's replication."""
    if journal is None:
        return []
    found = []
    if journal.strategy == NETWORK and not journal.factors.get(local_datacenter):
        found.append(
            f"the journal has no copy in datacenter {local_datacenter}: connect to one of "
            f"{', '.join(sorted(journal.factors))}"
        )
    if max(journal.factors.values(), default=0) < 3:
        found.append(
            f"the journal has {max(journal.factors.values(), default=0)} copies of each row: with fewer than "
            "three, one node that is down stops reads and writes at LOCAL_QUORUM"
        )
    return found
