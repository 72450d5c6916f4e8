"""Declare the operations on a Kafka Journal."""

from datetime import date, datetime
from typing import Annotated, Any

from pydantic import Field

from tagmill.operations.model import Operation, Parameters, Work
from tagmill.operations.work_size import (
    few_replicated_records,
    few_waiting_records,
    replicated_without_spark,
)


class ReplicateParameters(Parameters):
    """What a replication passes over, and when it writes."""

    accept_lost: Annotated[
        bool,
        Field(
            title="Accept lost records",
            description="Go on although records are gone from Kafka that were never replicated.",
        ),
    ] = False
    write_after: Annotated[
        datetime | None,
        Field(
            title="Write after",
            description="Write with times later than this moment (UTC), where another clock was ahead.",
        ),
    ] = None


class PurgeParameters(Parameters):
    """The day up to which ids have expired."""

    until: Annotated[
        date | None,
        Field(title="Until", description="Only ids that expire on this day or before; default: today (UTC)."),
    ] = None


def _replicate(work: Work, parameters: ReplicateParameters) -> Any:
    from tagmill.kafka_journal.replicate import replicate

    return replicate(
        work.settings,
        work.pipeline,
        owner=work.owner,
        spark=work.spark,
        accept_lost=parameters.accept_lost,
        write_after=parameters.write_after,
        tell=work.tell,
    )


def _purge(work: Work, parameters: PurgeParameters) -> Any:
    from tagmill.kafka_journal.purge import purge_expired

    return work.do(purge_expired, spark=work.spark, until=parameters.until)


REPLICATE = Operation(
    "kafka-journal replicate",
    "kafka_journal",
    "replicates the topics to the tables in Cassandra",
    ReplicateParameters,
    "replicate",
    _replicate,
    kafka=True,
    has_few_rows=few_waiting_records,
    needs_no_spark=replicated_without_spark,
)
PURGE = Operation(
    "kafka-journal purge-expired",
    "kafka_journal",
    "publishes Purge actions for ids that have expired, which the next replication follows",
    PurgeParameters,
    "purge_expired",
    _purge,
    kafka=True,
    from_dry_run=("until",),
    has_few_rows=few_replicated_records,
)
