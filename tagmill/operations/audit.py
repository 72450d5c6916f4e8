"""Declare the operation that repairs what an audit finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from tagmill.operations.model import Operation, Parameters, Work, require_reason

if TYPE_CHECKING:
    from tagmill.audit.repair import Outcome


class RepairParameters(Parameters):
    """The reason of a repair, and how far it goes."""

    why: Annotated[str | None, Field(title="Why", description="Reason; the ledger records it.")] = None
    full: Annotated[
        bool,
        Field(
            title="Read everything",
            description="Read again what an earlier audit has proven and what has not changed since.",
        ),
    ] = False
    despite_views: Annotated[
        bool,
        Field(
            title="Despite views",
            description="Go on where materialized views depend on the destination; complete them by hand.",
        ),
    ] = False

    def check(self, *, dry_run: bool) -> None:
        """Raise ConfigurationError for a repair without a reason."""
        require_reason(self.why, dry_run=dry_run)


def _repair(work: Work, parameters: RepairParameters) -> Outcome:
    from tagmill.audit.repair import audit_and_repair

    how = parameters.model_dump()  # why, full, despite_views
    return work.do(audit_and_repair, spark=work.spark(), who=work.who, first=work.shown, **how)


def _told(done: Outcome) -> dict[str, Any]:
    from tagmill.audit.audit import told

    return {**told(done), "message": done.message}


def _require_agreement(done: Outcome) -> None:
    from tagmill.audit.audit import raise_unless_it_agrees
    from tagmill.audit.repair import KEPT

    raise_unless_it_agrees(done, KEPT)


REPAIR = Operation(
    "repair",
    "tag_views",
    "audits, repairs the view and ClickHouse, and audits again",
    RepairParameters,
    "repair",
    _repair,
    told=_told,
    require=_require_agreement,
)
