"""The configuration of pipelines of kind tag_views: what they read and deliver, what their gate tolerates,
what is cleaned up.
"""

from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from tagmill.config.airflow import PipelineDagSettings
from tagmill.config.base import (
    DeliverySchedule,
    Identifier,
    LeaseSeconds,
    LeaseWaitSeconds,
    RetentionDays,
    Schedule,
    Section,
    fit_beside_destination,
)
from tagmill.domain.journal_tables import ALL_PERSISTENCE_IDS, MESSAGES, METADATA, VIEW_TABLE, JournalTables
from tagmill.domain.time_buckets import BucketSize, View, first_ticks
from tagmill.domain.timeuuid import TICKS_PER_SECOND, from_datetime

FirstSeen = Literal["require_one", "assume_first", "scan"]
WhoNumbers = Literal["application", "tagmill"]

# Limits of a look-back window in seconds: it has whole hours of the view, and fewer than a partition of hours
# in the ledger can take.
HOUR_SECONDS, MOST_LOOK_BACK_SECONDS = 3600, 366 * 86_400
# The longest TTL that Cassandra takes, in seconds: 20 years.
MOST_TTL_SECONDS = 20 * 365 * 86_400


def moment(value: Any) -> Any:
    """Convert ISO 8601, the plugin's yyyyMMddTHH:mm or TOML's dates to a moment, UTC without a zone; raises
    ValueError for a number.
    """
    if isinstance(value, int | float):
        raise ValueError('a number is no moment; write it as 2026-11-21 or "20261121T06:00"')
    if isinstance(value, str) and len(value) == 14 and value[8] == "T":
        value = datetime.strptime(value, "%Y%m%dT%H:%M").isoformat()
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return value


# Not the format date-time: the plugin's yyyyMMddTHH:mm is no such text.
Moment = Annotated[datetime, BeforeValidator(moment), WithJsonSchema({"type": "string"})]


class QualitySettings(Section):
    """What the gate tolerates before it stops a run."""

    max_held_share_percent: float = Field(
        10.0,
        ge=0,
        le=100,
        description="Percent of a run's new rows that may be newly held back. More stops the run.",
        examples=[10],
    )
    max_wrong_bucket_share_percent: float = Field(
        10.0,
        ge=0,
        le=100,
        description="Percent of rows that may lie outside their bucket. More means a wrong `bucket_size` "
        "and stops the run.",
        examples=[10],
    )
    min_rows_for_share: int = Field(
        5000,
        ge=1,
        description="Rows from which on the limits in percent can stop a run or a rebucket.",
        examples=[5000],
    )
    min_ids_for_share: int = Field(
        10,
        ge=1,
        description="Newly held persistence_ids from which on their share can stop a run.",
        examples=[10],
    )
    min_ttl_warning_seconds: int = Field(
        86_400,
        ge=0,
        description="Seconds: warn when undelivered rows expire sooner.",
        examples=[86400],
    )
    named_rows: int = Field(
        20,
        ge=1,
        le=1000,
        description="Offending rows that a page names.",
        examples=[20],
    )
    max_partition_rows: int = Field(
        100_000,
        ge=1,
        description="Rows of a partition of tag_views above which an audit warns.",
        examples=[100000],
    )
    max_partition_bytes: int = Field(
        100 * 1024 * 1024,
        ge=1,
        description="Bytes of payload and keys of a partition above which an audit warns.",
        examples=[104857600],
    )


class OffsetStore(Section):
    """Where a Pekko or Akka Projection on Cassandra keeps its offsets."""

    keyspace: Identifier = Field(
        description="Keyspace of the projection's offset table.",
        examples=["projections"],
    )
    table: Identifier = Field(
        "offset_store",
        description="Offset table.",
        examples=["offset_store"],
    )
    projection_name: str = Field(
        min_length=1,
        description="Name in its ProjectionId.",
        examples=["mail"],
    )
    projection_key: str | None = Field(
        None,
        description="Key in its ProjectionId. Left out: the tag.",
        examples=["order"],
    )


class OtherReader(Section):
    """A reader of the same view that is not Tagmill: a projection of the application.

    One of `read_to` and `offset_store`.
    """

    name: str = Field(
        min_length=1,
        description="Name that messages use.",
        examples=["mail"],
    )
    tags: list[str] | None = Field(
        None,
        description="Tags that it reads. Left out: all tags of the pipeline.",
        examples=[["order"]],
    )
    read_to: Moment | None = Field(
        None,
        description="Moment up to which it has read everything; it never goes back.",
        examples=["2026-06-01T00:00:00Z"],
    )
    offset_store: OffsetStore | None = Field(
        None,
        description="Where it keeps its offset (below).",
        examples=[{"keyspace": "projections", "projection_name": "mail"}],
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "OtherReader":
        if (self.read_to is None) == (self.offset_store is None):
            raise ValueError(f"reader {self.name}: say either read_to or offset_store")
        return self


class CleanupSettings(Section):
    """What is deleted once it is proven delivered, and how old it must be."""

    enabled: bool = Field(
        False,
        description="False: nothing is ever deleted. A dry run by hand shows what would go.",
        examples=[True],
    )
    schedule: Schedule | None = Field(
        "@daily",
        description="When Airflow runs the DAG cleanup_<pipeline>: a preset or a cron expression, in UTC.",
        examples=["@daily"],
    )
    older_than_days: int | None = Field(
        None,
        ge=1,
        description="Age in days beyond which rows of the view may go. Left out: they stay.",
        examples=[90],
    )
    other_readers: list[OtherReader] | None = Field(
        None,
        description="Who else reads the view, one table each (below); [] states that nobody does. Left "
        "out: rows of the view stay.",
        examples=[[]],
    )
    application_ttl_seconds: int | None = Field(
        None,
        ge=1,
        le=MOST_TTL_SECONDS,
        description="The application's events-by-tag.time-to-live, in seconds. Rows that Tagmill writes to the "
        "view have it, and rows of older events may be gone. Left out: unknown, or none.",
        examples=[7776000],
    )
    max_buckets_per_run: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="Partitions that one cleanup deletes at most.",
        examples=[1000],
    )
    deletes_per_second: float = Field(
        20,
        gt=0,
        description="Partitions deleted per second, which leaves room for the application's own reads.",
        examples=[20],
    )
    persistence_ids_per_second: float = Field(
        200,
        gt=0,
        description="Persistence_ids per second that `tagmill journal clean` works through, for the same "
        "reason.",
        examples=[200],
    )


class PipelineSettings(Section):
    """One source, its tags, one destination table, one schedule."""

    kind: Literal["tag_views"] = Field(
        "tag_views",
        description="The pipeline delivers tag views of Akka or Pekko Persistence.",
        examples=["tag_views"],
    )
    keyspace: Identifier = Field(
        description="Keyspace of the application's journal.",
        examples=["orders"],
    )
    view_table: Identifier = Field(
        VIEW_TABLE,
        description="The application's events-by-tag.table.",
        examples=["tag_views"],
    )
    messages_table: Identifier = Field(
        MESSAGES,
        description="The application's journal.table.",
        examples=["messages"],
    )
    metadata_table: Identifier = Field(
        METADATA,
        description="The application's journal.metadata-table.",
        examples=["metadata"],
    )
    all_persistence_ids_table: Identifier = Field(
        ALL_PERSISTENCE_IDS,
        description="The application's journal.all-persistence-ids-table.",
        examples=["all_persistence_ids"],
    )
    bucket_size: BucketSize = Field(
        description="The application's events-by-tag.bucket-size: Day, Hour or Minute. While the view is "
        "empty, a wrong one goes unnoticed.",
        examples=["Hour"],
    )
    tags: list[Annotated[str, Field(min_length=1)]] = Field(
        min_length=1,
        description="Tags that are delivered.",
        examples=[["order", "billing"]],
    )
    first_time_bucket: Moment = Field(
        description="The application's events-by-tag.first-time-bucket. The whole of that bucket is read.",
        examples=["20261121T07:00"],
    )
    start_from: dict[str, Moment] = Field(
        default_factory=dict,
        description="By tag: deliver only what is later than this moment.",
        examples=[{"order": "2026-06-01T00:00:00Z"}],
    )
    destination: Identifier = Field(
        description="Table of ClickHouse, of this pipeline only.",
        examples=["orders"],
    )
    views: WhoNumbers = Field(
        "application",
        description="Who writes tag_views. With tagmill they are built before each run, and the "
        "application has events-by-tag off.",
        examples=["tagmill"],
    )
    schedule: DeliverySchedule = "@hourly"
    audit_schedule: Schedule | None = Field(
        "@daily",
        description="When Airflow runs the DAG audit_<pipeline>: a preset or a cron expression, in UTC.",
        examples=["@daily"],
    )
    audit_full_days: int = Field(
        30,
        ge=0,
        description="Days after which an audit reads everything again. Until then audits count what an audit has "
        "proven, and read what has come since; 0: each audit reads everything.",
        examples=[7],
    )
    eventual_consistency_delay_seconds: float = Field(
        10,
        ge=0,
        description="Age in seconds that rows must have before a run reads them: by then their neighbours "
        "have arrived, too.",
        examples=[10],
    )
    look_back_seconds: float = Field(
        120,
        ge=0,
        description="Seconds before the watermark that each run reads again, for rows that arrived late.",
        examples=[120],
    )
    long_look_back_seconds: float = Field(
        3600,
        ge=0,
        description="The same, once an hour.",
        examples=[3600],
    )
    look_back_windows_seconds: list[float] = Field(
        [3600, 21_600, 86_400, 604_800, 2_592_000],
        description="Ages in seconds at which each hour of the view is counted again, and read if late "
        "rows came. []: never.",
        examples=[[3600, 86400]],
    )
    first_seen: FirstSeen = Field(
        "require_one",
        description="What happens to a persistence_id whose first number is above 1: held, taken for the "
        "first, or searched for lower numbers.",
        examples=["scan"],
    )
    gap_timeout_seconds: float = Field(
        3600,
        ge=0,
        description="Seconds after which a gap of deleted events is closed.",
        examples=[3600],
    )
    max_hold_age_seconds: float = Field(
        7 * 86_400,
        gt=0,
        description="Age of a hold in seconds above which `check` fails.",
        examples=[604800],
    )
    max_missing_to_search: int = Field(
        5000,
        ge=0,
        le=200_000,
        description="Missing numbers of a gap up to which the journal is searched for its events. A wider "
        "gap is held at once.",
        examples=[5000],
    )
    repair_rows_per_second: float = Field(
        2000,
        gt=0,
        description="Rows per second that `tagmill repair` writes to tag_views.",
        examples=[2000],
    )
    repair_view: bool = Field(
        True,
        description="Write events that were taken from the journal back into tag_views.",
        examples=[False],
    )
    snapshot_keyspace: Identifier | None = Field(
        None,
        description="Keyspace of the application's snapshots. Left out: the journal's name with "
        "`_snapshot` behind it.",
        examples=["orders_snapshot"],
    )
    snapshot_table: Identifier = Field(
        "snapshots",
        description="Table of the application's snapshots.",
        examples=["snapshots"],
    )
    text_serializers: list[int] = Field(
        default_factory=list,
        description="The ser_ids whose payloads are text, shown in event_text. Empty: text is recognized "
        "by content. Nothing is decoded.",
        examples=[[1001]],
    )
    max_slices_per_run: int = Field(
        2000,
        ge=1,
        description="Slices of buckets that one run reads at most. A backlog takes several runs.",
        examples=[2000],
    )
    max_rows_per_run: int = Field(
        5_000_000,
        ge=1,
        description="Rows of the view that one run reads at most. A backlog takes several runs.",
        examples=[5000000],
    )
    batch_rows: int = Field(
        250_000,
        ge=1,
        description="Rows that a batch may have.",
        examples=[250000],
    )
    batch_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1,
        description="Bytes of payload and keys that a batch may have before compression.",
        examples=[268435456],
    )
    small_run_rows: int = Field(
        50_000,
        ge=0,
        le=200_000,
        description="Rows up to which a run is read and judged without Spark, unless something in it is in doubt; "
        "persistence ids and new events up to which a build numbers without Spark; 0: always with Spark.",
        examples=[50000],
    )
    parallel_inserts: int = Field(
        2,
        ge=1,
        le=64,
        description="Tags whose batches are inserted at the same time.",
        examples=[2],
    )
    lease_seconds: LeaseSeconds = 60
    lease_wait_seconds: LeaseWaitSeconds = 0
    retention_days: RetentionDays = 30
    destination_retention_days: int | None = Field(
        None,
        ge=1,
        description="Age in days of `event_time` beyond which rows may be gone from ClickHouse (TTL, DROP "
        "PARTITION). Left out: all rows stay.",
        examples=[365],
    )
    quality: QualitySettings = Field(
        default_factory=QualitySettings,
        description="What the gate tolerates (a section of its own).",
        examples=[{"max_held_share_percent": 5}],
    )
    airflow: PipelineDagSettings = Field(
        default_factory=PipelineDagSettings,
        description="Keys of `[airflow]` that are others for the DAGs of this pipeline.",
        examples=[{"owner": "orders-team"}],
    )
    cleanup: CleanupSettings = Field(
        default_factory=CleanupSettings,
        description="What is deleted once it is proven delivered (a section of its own).",
        examples=[{"enabled": True}],
    )

    @model_validator(mode="after")
    def _consistent(self) -> "PipelineSettings":
        if len(set(self.tags)) != len(self.tags):
            raise ValueError("tags: a tag is named twice")
        if unknown := set(self.start_from) - set(self.tags):
            raise ValueError(f"start_from: not among the tags: {', '.join(sorted(unknown))}")
        if self.long_look_back_seconds < self.look_back_seconds:
            raise ValueError(
                f"long_look_back_seconds: must be at least look_back_seconds ({self.look_back_seconds:g})"
            )
        if any(
            not HOUR_SECONDS <= seconds <= MOST_LOOK_BACK_SECONDS
            for seconds in self.look_back_windows_seconds
        ):
            raise ValueError(
                f"look_back_windows_seconds: each from {HOUR_SECONDS} to {MOST_LOOK_BACK_SECONDS}"
            )
        self._consistent_cleanup()
        fit_beside_destination(*self.beside_destination)
        return self

    def _consistent_cleanup(self) -> None:
        ttl, delay = self.cleanup.application_ttl_seconds, self.eventual_consistency_delay_seconds
        if ttl is not None and ttl <= delay:
            raise ValueError(
                f"cleanup.application_ttl_seconds: a TTL shorter than the delay ({ttl} s, "
                "eventual_consistency_delay_seconds "
                f"{delay:g}): rows expire before any run may deliver them; raise "
                "events-by-tag.time-to-live, or lower the delay"
            )
        days, needed = self.cleanup.older_than_days, delay + self.long_look_back_seconds
        if days is not None and days * 86_400 <= needed:
            raise ValueError(
                "cleanup.older_than_days: a TTL shorter than the delay and long_look_back_seconds "
                f"together ({needed:g} s): "
                "runs still read those rows; raise it"
            )
        for reader in self.cleanup.other_readers or ():
            if unknown := set(reader.tags or ()) - set(self.tags):
                raise ValueError(
                    f"cleanup.other_readers: {reader.name}: not among the tags: {', '.join(sorted(unknown))}"
                )

    @property
    def view(self) -> View:
        """The table of tag views, and the size of its buckets."""
        return View(self.view_table, self.bucket_size)

    @property
    def journal(self) -> JournalTables:
        """The journal's tables."""
        return JournalTables(
            self.keyspace,
            self.view_table,
            self.messages_table,
            self.metadata_table,
            self.all_persistence_ids_table,
        )

    @property
    def beside_destination(self) -> tuple[str, ...]:
        """The view of each event once, and the tables of void batches, of sent ones, and of events under two
        offsets.
        """
        return tuple(f"{self.destination}_{name}" for name in ("events", "voided", "batches", "twice"))

    @property
    def first_ticks(self) -> int:
        """Where readers begin (ticks since 1970): with the whole bucket that first_time_bucket lies in, as
        the plugin's do.
        """
        return first_ticks(self.bucket_size.start(from_datetime(self.first_time_bucket)))

    def start_ticks(self, tag: str) -> int:
        """Return where a tag's delivery begins (ticks since 1970): at start_from, but not before the first
        time bucket.
        """
        start = self.start_from.get(tag)
        return self.first_ticks if start is None else max(self.first_ticks, from_datetime(start))

    def expired_to(self, now: datetime) -> int:
        """Return the ticks before which the application's TTL may have taken rows of the view; 0: it has no TTL.

        It is the end of a bucket, so whole buckets may have lost rows. Rows that expire within the next hour count as expired,
        since reading takes time and clocks differ.
        """
        ttl = self.cleanup.application_ttl_seconds
        if ttl is None:
            return 0
        expired = from_datetime(now) + (HOUR_SECONDS - ttl) * TICKS_PER_SECOND
        return first_ticks(self.bucket_size.start(expired)) + self.bucket_size.ticks
