"""Operations that a person starts by hand: their names, their fields, and the jobs that do them.

Plain data, without Airflow: a form, a command or a page can be made from it. Each field is declared once,
also if several operations take it. maintenance.py makes a DAG from it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from tagmill.domain.time_buckets import BucketSize
from tagmill.errors import ConfigurationError

Kind = Literal["tag_views", "topic", "kafka_journal"]
Params = Mapping[str, Any]
# The format date-time gives the UI its date picker, but Airflow doesn't check it; this pattern is checked,
# and asks for a time zone.
MOMENT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})$"
DAY = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
# A key of the application's tables: not empty, and without the character NUL.
TEXT = {"type": "string", "minLength": 1, "pattern": "^[^\\u0000]*$"}
# The type allows null because the form sends null for a list that was emptied.
TEXTS: dict[str, Any] = {"type": ["array", "null"], "items": TEXT}
# Persistence ids and tags that one operation on views takes by name.
MOST_NAMES = 1000
# The values of tagmill.views.model.Step, which is not loaded when DAG files are parsed.
STEPS = ["tables", "tags-column", "columns", "pids", "tags"]
DELETE = {
    "to": "events up to a sequence_nr",
    "before_snapshot": "events and snapshots before the oldest snapshot that is kept",
    "snapshots": "old snapshots only",
    "all": "all events and snapshots: their actors must not be running",
}


@dataclass(frozen=True)
class Field:
    """Field of one or more operations.

    Args:
        schema: JSON schema of its values.
        default: the value of a field that nobody has set.
    """

    name: str
    title: str
    description: str
    schema: Mapping[str, Any]
    default: Any = None

    def is_set(self, params: Params) -> bool:
        """Return True if the params give the field a value other than its default; an emptied one is not
        set.
        """
        value = params.get(self.name)
        return value not in (None, "", []) and value != self.default


def _nothing(params: Params) -> str | None:
    return None


@dataclass(frozen=True)
class Operation:
    """Operation on a pipeline.

    Args:
        name: as the command line has it.
        kind: of the pipelines that have it.
        script: the Spark job that does it; None if the worker's own process does.
        step: the job's own name for it, which messages and reports have.
        arguments: returns the job's arguments, without `--dry-run`, from the params.
        lacking: returns a sentence that says what the params lack, or None.
        changes: False if it only reads, so that there is nothing to approve.
        kafka: True if the job logs in to Kafka, too.
    """

    name: str
    kind: Kind
    description: str
    fields: tuple[Field, ...] = ()
    script: str | None = None
    step: str = ""
    arguments: Callable[[Params], list[str]] = lambda params: []
    lacking: Callable[[Params], str | None] = _nothing
    changes: bool = True
    kafka: bool = False

    def job_arguments(self, params: Params) -> list[str]:
        """Return the job's arguments from the params.

        Raises ConfigurationError for a value that its schema could not refuse.
        """
        return [*self.arguments(params), *(["--dry-run"] if params["dry_run"] else [])]


def select(operations: Iterable[Operation], pipeline: str, params: Params) -> Operation:
    """Return the operation that the params name.

    Raises ConfigurationError if a field is set that only other operations take, or one is missing.
    """
    by_name = {operation.name: operation for operation in operations}
    selected = by_name[params["operation"]]
    own = {field.name for field in selected.fields}
    foreign = sorted(
        {
            field.name
            for operation in by_name.values()
            for field in operation.fields
            if field.name not in own and field.is_set(params)
        }
    )
    if foreign:
        raise ConfigurationError(
            f"{selected.name} of {pipeline}: it has no param {', '.join(foreign)}, which other operations have. "
            "Nothing was changed; trigger it again without"
        )
    if lacking := selected.lacking(params):
        raise ConfigurationError(f"{selected.name} of {pipeline}: {lacking}. Nothing was changed")
    return selected


def fields_of(operations: Iterable[Operation]) -> list[tuple[Field, list[str]]]:
    """Return each field of the operations once, with the names of the operations that take it."""
    fields: dict[str, tuple[Field, list[str]]] = {}
    for operation in operations:
        for field in operation.fields:
            fields.setdefault(field.name, (field, []))[1].append(operation.name)
    return list(fields.values())


def _switch(name: str, title: str, description: str) -> Field:
    return Field(name, title, description, {"type": "boolean"}, default=False)


IDS = Field("persistence_ids", "Persistence ids", "one a line", TEXTS, default=[])
IDS_FILE = Field(
    "persistence_ids_file",
    "File of persistence ids",
    "one a line; a file of the folder [airflow] input_dir on the worker",
    {"type": ["null", "string"]},
)
TAGS = Field("tags", "Tags", "only rows of these tags; empty: all", TEXTS, default=[])
OFFLINE = _switch(
    "offline",
    "Offline",
    "the application, and whatever else numbers events, is stopped on every node; without persistence ids: all of them",
)
DROP_OLD = _switch(
    "drop_old",
    "Drop what is old",
    "afterwards drop the old table, or the old views and columns: there is no way back",
)
MIGRATE_STEPS = Field(
    "steps",
    "Steps",
    "only these; empty: all, but tags only with persistence ids or offline",
    {
        "type": ["array", "null"],
        "items": {"type": "string", "enum": STEPS},
        "uniqueItems": True,
        "examples": STEPS,
    },
    default=[],
)
SNAPSHOT_KEYSPACE = Field(
    "snapshot_keyspace",
    "Snapshots",
    "the snapshot store's keyspace; empty: as the journal's",
    {"type": ["null", "string"], "pattern": "^[A-Za-z0-9_]*$"},
)
BUCKET_SIZE = Field(
    "bucket_size",
    "Bucket size",
    "that the view is to have; required",
    {
        "type": ["null", "string"],
        "pattern": f"^({'|'.join(BucketSize)})?$",
        "examples": [size.value for size in BucketSize],
    },
)
NEW_TABLE = Field(
    "table",
    "New table",
    "its name; empty: tag_views_ and the size, in lower case",
    {"type": ["null", "string"], "pattern": "^([a-z][a-z0-9_]{0,47})?$"},
)
ABANDON = _switch("abandon", "Give it up", "before the switch: drop the new table, the view stays as it is")
WHY = Field(
    "why",
    "Why",
    "required to erase; is recorded; don't name the persistence id",
    {"type": ["null", "string"]},
)
CLEAN_FIELDS = (
    Field(
        "delete",
        "Delete",
        "what is deleted of each persistence id",
        {"type": "string", "enum": list(DELETE), "values_display": DELETE},
        default="to",
    ),
    Field(
        "to",
        "Up to sequence_nr",
        "required for: events up to a sequence_nr",
        {"type": ["null", "integer"], "minimum": 1},
    ),
    Field(
        "keep",
        "Keep snapshots",
        "so many of each stay at least",
        {"type": "integer", "minimum": 1},
        default=1,
    ),
    Field(
        "keep_newer_than",
        "Keep newer snapshots",
        "than this moment, too",
        {"type": ["null", "string"], "format": "date-time", "pattern": MOMENT},
    ),
    _switch("never_again", "Never again", "with all: their names go, too, and must never be used again"),
    _switch("views", "Rows of tag_views", "of the events that go"),
    _switch(
        "force_undelivered", "Force: undelivered", "delete events that a pipeline has not delivered, too"
    ),
    _switch(
        "force_unread",
        "Force: unread",
        "delete rows of tag_views that runs or other readers may still read, too",
    ),
)
DROP_UNREADABLE = _switch(
    "drop_unreadable", "Drop unreadable", "let ids go whose payload gives none under the new rule"
)
UNTIL = Field(
    "until",
    "Until",
    "ids that expire on this day or before; empty: today, UTC",
    {"type": ["null", "string"], "format": "date", "pattern": DAY},
)


def _views_arguments(step: str) -> Callable[[Params], list[str]]:
    """Return a function that returns the arguments of spark_jobs/views.py; a value may begin with a dash."""

    def arguments(params: Params) -> list[str]:
        made = ["--operation", step]
        for name, option in (("steps", "--step"), ("persistence_ids", "--persistence-id"), ("tags", "--tag")):
            made += [f"{option}={value}" for value in dict.fromkeys(params.get(name) or ())]
        if keyspace := params.get("snapshot_keyspace"):
            made.append(f"--snapshot-keyspace={keyspace}")
        return [*made, *_flags(params, "offline", "drop_old")]

    return arguments


def _rebucket_arguments(params: Params) -> list[str]:
    table = [f"--table={params['table']}"] if params["table"] else []
    return ["--to", params["bucket_size"], *table, *_flags(params, "offline", "drop_old", "abandon")]


def _purge_arguments(params: Params) -> list[str]:
    until = params.get("until")
    return ["--operation", "purge_expired", *([f"--until={_day('until', until)}"] if until else [])]


def _flags(params: Params, *names: str) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name in names if params.get(name)]


def _day(param: str, text: str) -> date:
    """Return a param's text as a date.

    Raises ConfigurationError if the calendar has no such day, which the param's pattern can't tell.
    """
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"param {param}: {text!r} is no day of the calendar. Nothing was done; give it as YYYY-MM-DD"
        ) from None


def _lacks_selection(params: Params) -> str | None:
    if not (params["persistence_ids"] or params["offline"]):
        return "name persistence_ids, or switch offline on for all of the journal"
    return _too_many(params)


def _too_many(params: Params) -> str | None:
    too_many = [name for name in ("persistence_ids", "tags") if len(params.get(name) or ()) > MOST_NAMES]
    return (
        f"at most {MOST_NAMES} {' and '.join(too_many)} are named here; use the command line"
        if too_many
        else None
    )


def _lacks_offline(params: Params) -> str | None:
    stopped = params["offline"] or params["dry_run"]
    return None if stopped else "the application must be stopped: switch offline on"


def _lacks_bucket_size(params: Params) -> str | None:
    return None if params["bucket_size"] else f"set bucket_size to one of {', '.join(BucketSize)}"


def _lacks_ids(params: Params) -> str | None:
    named = params["persistence_ids"] or params["persistence_ids_file"]
    return None if named else "name persistence_ids, or a file of them in persistence_ids_file"


def _lacks_ids_or_why(params: Params) -> str | None:
    if not params["dry_run"] and not (params["why"] or "").strip():
        return "param why is empty; say why, it is recorded"
    return _lacks_ids(params)


def _views(step: str, description: str, *fields: Field, **more: Any) -> Operation:
    return Operation(
        f"views {step}",
        "tag_views",
        description,
        fields,
        script="views.py",
        step=step,
        arguments=_views_arguments(step),
        **more,
    )


# The first of a kind is what a form opens with: it changes the least.
OPERATIONS = (
    Operation(
        "views tags",
        "tag_views",
        "lists the tags that the view has rows of, or those of the persistence ids named",
        (IDS,),
        changes=False,
        lacking=_too_many,
    ),
    _views(
        "rebuild",
        "makes tag_views what the journal says, as the plugin would number it",
        IDS,
        OFFLINE,
        TAGS,
        lacking=_lacks_selection,
    ),
    _views(
        "delete",
        "deletes rows of tag_views, and their progress, that a rebuild can bring back",
        IDS,
        OFFLINE,
        TAGS,
        lacking=_lacks_selection,
    ),
    _views(
        "truncate", "empties tag_views, tag_write_progress and tag_scanning", OFFLINE, lacking=_lacks_offline
    ),
    _views("pids", "adds to all_persistence_ids those that have events and are not listed"),
    _views(
        "migrate",
        "brings a journal of an older plugin to today's tables, columns and tag views",
        MIGRATE_STEPS,
        IDS,
        OFFLINE,
        SNAPSHOT_KEYSPACE,
        DROP_OLD,
        lacking=_too_many,
    ),
    Operation(
        "views rebucket",
        "tag_views",
        "copies the view into a table with another bucket size; with offline, makes that the view",
        (BUCKET_SIZE, NEW_TABLE, OFFLINE, DROP_OLD, ABANDON),
        script="rebucket.py",
        step="rebucket",
        arguments=_rebucket_arguments,
        lacking=_lacks_bucket_size,
    ),
    Operation(
        "journal clean",
        "tag_views",
        "deletes events, or snapshots, of the persistence ids named, as the plugin's Cleanup does",
        (IDS, IDS_FILE, *CLEAN_FIELDS),
        lacking=_lacks_ids,
    ),
    Operation(
        "erase",
        "tag_views",
        "erases the persistence ids named, wherever they went, for good",
        (IDS, IDS_FILE, WHY),
        lacking=_lacks_ids_or_why,
    ),
    Operation(
        "dedup expire",
        "topic",
        "deletes ids past the window",
        script="dedup.py",
        step="dedup_expire",
        arguments=lambda params: ["--operation", "expire"],
    ),
    Operation(
        "dedup rekey",
        "topic",
        "makes the ids again by the configured rule",
        (DROP_UNREADABLE,),
        script="dedup.py",
        step="dedup_rekey",
        arguments=lambda params: ["--operation", "rekey", *_flags(params, "drop_unreadable")],
    ),
    Operation(
        "kafka-journal purge-expired",
        "kafka_journal",
        "publishes Purge actions for ids that have expired, which the next replication follows",
        (UNTIL,),
        script="replicate.py",
        step="purge_expired",
        arguments=_purge_arguments,
        kafka=True,
    ),
)
BY_NAME = {operation.name: operation for operation in OPERATIONS}


def operations_of(kind: Kind) -> tuple[Operation, ...]:
    """Return the operations that a kind of pipeline has."""
    return tuple(operation for operation in OPERATIONS if operation.kind == kind)
