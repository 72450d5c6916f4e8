"""Declare the operations on the ids of a topic's delivered events."""

from typing import Annotated, Any

from pydantic import Field

from tagmill.operations.model import NoParameters, Operation, Parameters, Work
from tagmill.operations.work_size import few_ids


class RekeyParameters(Parameters):
    """What becomes of ids that can't be made again."""

    drop_unreadable: Annotated[
        bool,
        Field(title="Drop unreadable", description="Drop ids whose payload gives none under the new rule."),
    ] = False


def _expire(work: Work, parameters: NoParameters) -> Any:
    from tagmill.delivery.topics.expire_ids import expire

    return expire(work.settings, work.pipeline, owner=work.owner, spark=work.spark, dry_run=work.dry_run)


def _rekey(work: Work, parameters: RekeyParameters) -> Any:
    from tagmill.delivery.topics.rekey_ids import rekey

    return work.do(rekey, who=work.who, spark=work.spark, drop_unreadable=parameters.drop_unreadable)


EXPIRE = Operation(
    "dedup expire",
    "topic",
    "deletes ids past the window",
    NoParameters,
    "dedup_expire",
    _expire,
    has_few_rows=few_ids,
)
REKEY = Operation(
    "dedup rekey",
    "topic",
    "makes the ids again by the configured rule",
    RekeyParameters,
    "dedup_rekey",
    _rekey,
    has_few_rows=few_ids,
)
