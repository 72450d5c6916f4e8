"""Totals of a call of `erase`, and the messages that report them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tagmill.domain import identifiers
from tagmill.maintenance.erasure.model import PLACES

# Unknown persistence ids that a report names, at most.
NAMED = 20


@dataclass(slots=True)
class Total:
    """Totals of all erasures of one call; `differing`: batches that ClickHouse has otherwise than it
    should.
    """

    persistence_ids: int = 0
    unknown: int = 0
    unknown_ids: list[str] = field(default_factory=list)
    erased_before: int = 0
    erasures: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLACES, 0))
    warnings: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts by place."""
        for place, count in counts.items():
            self.counts[place] += count

    def note_unknown(self, persistence_ids: Collection[str], erased_before: Collection[str]) -> None:
        """Count persistence ids without any trace, those that an earlier erasure removed apart from the
        others.
        """
        never = [one for one in persistence_ids if one not in erased_before]
        self.erased_before += len(erased_before)
        self.unknown += len(never)
        self.unknown_ids.extend(never[: NAMED - len(self.unknown_ids)])

    @property
    def is_nothing(self) -> bool:
        """Whether no named persistence id exists or was erased before, and no erasure had to be finished."""
        return (
            not (self.erasures or self.erased_before or self.warnings)
            and self.unknown == self.persistence_ids
        )


def nobody(pipeline: str, journal: str, total: Total) -> str:
    """Return the error message of a call that had nothing to erase."""
    if not total.persistence_ids:
        return (
            f"pipeline {pipeline}: no persistence id was named, and no erasure is to be finished. "
            "Nothing was erased"
        )
    first = identifiers.quoted(total.unknown_ids, total.unknown)
    return (
        f"pipeline {pipeline}: nobody knows any of the {total.persistence_ids} persistence ids (the "
        f"first: {first}) of journal {journal}. "
        "Nothing was erased; are they written as in the column persistence_id?"
    )


def differs(pipeline: str, total: Total) -> str:
    """Return the error message for batches that are not what they should be, although all is erased."""
    done = ", ".join(map(str, total.erasures))
    return (
        f"pipeline {pipeline}: erasure {done} is done, nothing of these persistence ids is left. But "
        "ClickHouse has other rows than it "
        f"should of {len(total.differing)} batches, the first {total.differing[0]}: they were changed "
        "before. "
        f"Look: tagmill check --pipeline {pipeline}. Repair: tagmill repair --pipeline {pipeline} "
        "--why …"
    )


def result(pipeline: str, journal: str, total: Total, *, delete: bool) -> dict[str, Any]:
    """Return the report of `erase`: figures, warnings and message."""
    done = "erased" if delete else "would be erased"
    counts = ", ".join(f"{count} {place.replace('_', ' ')}" for place, count in total.counts.items())
    beside = [f"{total.unknown} unknown"] * (total.unknown > 0) + [f"{total.erased_before} erased before"] * (
        total.erased_before > 0
    )
    return {
        "pipeline": pipeline,
        "journal": journal,
        "dry_run": not delete,
        "persistence_ids": total.persistence_ids,
        "unknown": total.unknown,
        "unknown_ids": total.unknown_ids,
        "erased_before": total.erased_before,
        "erasures": total.erasures,
        "counts": total.counts,
        "warnings": total.warnings,
        "message": f"journal {journal}, {total.persistence_ids} persistence ids: {counts} "
        f"{done}{''.join(f'; {text}' for text in beside)}",
    }
