"""The configuration of pipelines of kind tag_views: what they read and deliver, what their gate tolerates,
what is cleaned up.
"""

from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tagmill.config.base import Identifier, Section, fit_beside_destination
from tagmill.domain.journal_tables import ALL_PERSISTENCE_IDS, MESSAGES, METADATA, VIEW_TABLE, JournalTables
from tagmill.domain.time_buckets import BucketSize, View, first_ticks
from tagmill.domain.timeuuid import from_datetime

FirstSeen = Literal["require_one", "assume_first", "scan"]
WhoNumbers = Literal["application", "tagmill"]

# Limits of a look-back window in seconds: it has whole hours of the view, and fewer than a partition of hours
# in the ledger can take.
HOUR_SECONDS, MOST_LOOK_BACK_SECONDS = 3600, 366 * 86_400


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


Moment = Annotated[datetime, BeforeValidator(moment)]


class QualitySettings(Section):
    """What the gate tolerates before it stops a run."""

    max_held_share_percent: float = Field(
        10.0,
        ge=0,
        le=100,
        description="of a run's new rows that no open hold kept back before: more stops the run",
    )
    max_wrong_bucket_share_percent: float = Field(
        10.0, ge=0, le=100, description="rows outside their bucket: more means a wrong bucket size"
    )
    min_rows_for_share: int = Field(
        5000, ge=1, description="a run of fewer new rows is never stopped by a limit in percent"
    )
    min_ids_for_share: int = Field(
        10, ge=1, description="so many persistence_ids newly held at least before their share stops a run"
    )
    min_ttl_warning_seconds: int = Field(86_400, ge=0, description="warn when undelivered rows expire sooner")
    named_rows: int = Field(20, ge=1, le=1000, description="offending rows named on a page")
    max_partition_rows: int = Field(
        100_000, ge=1, description="an audit warns of larger partitions of tag_views"
    )
    max_partition_bytes: int = Field(
        100 * 1024 * 1024, ge=1, description="of payload and keys; an audit warns of larger ones"
    )


class OffsetStore(Section):
    """Where a Pekko or Akka Projection on Cassandra keeps its offsets."""

    keyspace: Identifier
    table: Identifier = "offset_store"
    projection_name: str = Field(min_length=1)
    projection_key: str | None = Field(None, description="of its ProjectionId; left out: the tag")


class OtherReader(Section):
    """A reader of the same view that is not Tagmill: a projection of the application.

    One of `read_to` and `offset_store`.
    """

    name: str = Field(min_length=1)
    tags: list[str] | None = Field(None, description="that it reads; left out: all tags of the pipeline")
    read_to: Moment | None = Field(None, description="it has read everything up to here and never goes back")
    offset_store: OffsetStore | None = Field(
        None,
        description="where it keeps its offset: keyspace, table (`offset_store`), projection_name, "
        "projection_key (the tag)",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "OtherReader":
        if (self.read_to is None) == (self.offset_store is None):
            raise ValueError(f"reader {self.name}: say either read_to or offset_store")
        return self


class CleanupSettings(Section):
    """What is deleted once it is proven delivered, and how old it must be."""

    enabled: bool = Field(
        False, description="off: nothing is ever deleted, a dry run by hand says what would be"
    )
    schedule: str | None = "@daily"
    older_than_days: int | None = Field(
        None, ge=1, description="TTL of view rows; left out: rows of the view stay"
    )
    other_readers: list[OtherReader] | None = Field(
        None,
        description="who else reads the view; [] states that nobody does. Left out: rows of the view stay",
    )
    application_ttl_seconds: int | None = Field(
        None,
        ge=1,
        description="events-by-tag.time-to-live of the application; left out: not known, or there is none",
    )
    max_buckets_per_run: int = Field(
        1000, ge=1, le=100_000, description="partitions that one cleanup deletes"
    )
    deletes_per_second: float = Field(
        20, gt=0, description="partitions, so that the application's own reads are not crowded out"
    )
    persistence_ids_per_second: float = Field(
        200, gt=0, description="that `tagmill journal clean` works through, for the same reason"
    )


class PipelineSettings(Section):
    """One source, its tags, one destination table, one schedule."""

    kind: Literal["tag_views"] = "tag_views"
    keyspace: Identifier
    view_table: Identifier = Field(VIEW_TABLE, description="events-by-tag.table of the application")
    messages_table: Identifier = Field(MESSAGES, description="journal.table of the application")
    metadata_table: Identifier = Field(METADATA, description="journal.metadata-table of the application")
    all_persistence_ids_table: Identifier = Field(
        ALL_PERSISTENCE_IDS, description="journal.all-persistence-ids-table of the application"
    )
    bucket_size: BucketSize = Field(
        description="events-by-tag.bucket-size of the application; while the view is empty, nothing "
        "tells a wrong one"
    )
    tags: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    first_time_bucket: Moment = Field(
        description="events-by-tag.first-time-bucket of the application; its bucket counts as a whole"
    )
    start_from: dict[str, Moment] = Field(
        default_factory=dict, description="per tag: deliver only what is later"
    )
    destination: Identifier = Field(description="table, of this pipeline only")
    views: WhoNumbers = Field(
        "application",
        description="who writes tag_views; tagmill: built before each run, the application has "
        "events-by-tag off",
    )
    schedule: str | None = "@hourly"
    audit_schedule: str | None = Field("@daily", description="of the DAG audit_<pipeline>")
    eventual_consistency_delay_seconds: float = Field(10, ge=0)
    look_back_seconds: float = Field(
        120, ge=0, description="read again in each run for rows that arrived late"
    )
    long_look_back_seconds: float = Field(3600, ge=0, description="the same, once an hour")
    look_back_windows_seconds: list[float] = Field(
        [3600, 21_600, 86_400, 604_800, 2_592_000],
        description="ages at which each hour of the view is counted again, and read if late rows came; "
        "[]: never",
    )
    first_seen: FirstSeen = "require_one"
    gap_timeout_seconds: float = Field(3600, ge=0, description="a deleted hole is closed after this age")
    max_hold_age_seconds: float = Field(7 * 86_400, gt=0, description="an older hold fails the check")
    max_missing_to_search: int = Field(
        5000, ge=0, description="a wider hole is held without looking into the journal"
    )
    repair_rows_per_second: float = Field(
        2000, gt=0, description="the pace at which audit --repair mends tag_views"
    )
    repair_view: bool = Field(True, description="write healed events back into tag_views")
    snapshot_keyspace: Identifier | None = Field(
        None,
        description="of the application's snapshots; left out: that of the journal with `_snapshot` "
        "behind it",
    )
    snapshot_table: Identifier = "snapshots"
    text_serializers: list[int] = Field(
        default_factory=list,
        description="ser_ids whose payloads are text, shown in event_text; empty: found by content. "
        "Nothing is decoded",
    )
    max_slices_per_run: int = Field(2000, ge=1)
    max_rows_per_run: int = Field(5_000_000, ge=1)
    batch_rows: int = Field(250_000, ge=1)
    batch_bytes: int = Field(256 * 1024 * 1024, ge=1, description="of payload and keys, before compression")
    parallel_inserts: int = Field(2, ge=1, le=64)
    lease_seconds: int = Field(60, ge=5, le=3600)
    lease_wait_seconds: float = Field(
        0, ge=0, description="how long a command waits for another run of the pipeline"
    )
    retention_days: int = Field(30, ge=1, description="sealed files and ledger rows of closed runs")
    destination_retention_days: int | None = Field(
        None,
        ge=1,
        description="rows whose event_time is older may be gone from ClickHouse (TTL, DROP PARTITION); "
        "left out: all stay",
    )
    quality: QualitySettings = Field(default_factory=QualitySettings)
    cleanup: CleanupSettings = Field(default_factory=CleanupSettings)

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
