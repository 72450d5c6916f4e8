"""Make docs/configuration.md from the settings model; a test compares them.

`python -m tagmill.config.reference_page` prints the page.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tagmill.config.airflow import AirflowSettings, Notifier, PipelineDagSettings
from tagmill.config.base import Section
from tagmill.config.environment import SECRETS
from tagmill.config.kafka import (
    KafkaJournalEventsSettings,
    KafkaJournalSettings,
    KafkaSettings,
    TopicColumn,
    TopicSettings,
)
from tagmill.config.settings import (
    CassandraSettings,
    ClickHouseSettings,
    Replication,
    SparkSettings,
    StorageSettings,
)
from tagmill.config.tag_views import (
    CleanupSettings,
    OffsetStore,
    OtherReader,
    PipelineSettings,
    QualitySettings,
)

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
HEAD = """# Configuration

One TOML file: `--config`, else `$TAGMILL_CONFIG`, else `./tagmill.toml`. `TAGMILL_<SECTION>__<KEY>` in the environment overrides a
key. Unknown keys are errors. Relative paths count from the folder of the file. User names and passwords come from the environment or from
Airflow's connections only; `TAGMILL_<SECTION>__PASSWORD_FILE`, `…__USERNAME_FILE` and `…__TLS_KEY_PASSWORD_FILE` name files that hold them.

Each pipeline is a section `[pipelines.NAME]`, and its key `kind` says what it reads. Defaults and examples are written as in TOML.

This page is made from the settings model: `python -m tagmill.config.reference_page`.
"""
# Sections by their heading, in the order of the page.
SECTIONS: dict[str, type[Section]] = {
    "[cassandra]": CassandraSettings,
    "[cassandra.replication]": Replication,
    "[clickhouse]": ClickHouseSettings,
    "[spark]": SparkSettings,
    "[storage]": StorageSettings,
    "[kafka]": KafkaSettings,
    "[airflow]": AirflowSettings,
    "[[airflow.on_failure]] and [[airflow.on_deadline]], where they are notifiers": Notifier,
    '[pipelines.NAME], kind = "tag_views"': PipelineSettings,
    "[pipelines.NAME.airflow], of any kind": PipelineDagSettings,
    "[pipelines.NAME.quality]": QualitySettings,
    "[pipelines.NAME.cleanup]": CleanupSettings,
    "[[pipelines.NAME.cleanup.other_readers]]": OtherReader,
    "[pipelines.NAME.cleanup.other_readers.offset_store]": OffsetStore,
    '[pipelines.NAME], kind = "kafka_journal"': KafkaJournalSettings,
    '[pipelines.NAME], kind = "kafka_journal_events"': KafkaJournalEventsSettings,
    '[pipelines.NAME], kind = "topic"': TopicSettings,
    "[[pipelines.NAME.columns]], of a topic": TopicColumn,
}


def page() -> str:
    """Return the text of docs/configuration.md."""
    return HEAD + "".join(
        f"\n## {heading}\n\n{''.join(_table(heading, section))}" for heading, section in SECTIONS.items()
    )


def _table(heading: str, section: type[Section]) -> Iterator[str]:
    yield "| key | default | meaning | example |\n|---|---|---|---|\n"
    for name, field in section.model_fields.items():
        key = field.alias or name
        (example,) = field.examples or [""]
        text = f"{key} = {toml(example)}"
        if key in SECRETS:
            text = f"TAGMILL_{heading.strip('[]').upper()}__{key.upper()}={example}"
        yield f"| `{key}` | {_default(field)} | {field.description or ''} | `{text}` |\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None:
        return ""
    if isinstance(default, BaseModel):
        default = default.model_dump(by_alias=True, exclude_defaults=not isinstance(default, Replication))
    return f"`{toml(default)}`"


def toml(value: Any) -> str:
    """Return a value as TOML writes it, on one line."""
    if isinstance(value, dict):
        pairs = (
            f"{key if BARE_KEY.fullmatch(key) else json.dumps(key)} = {toml(value[key])}" for key in value
        )
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    text = json.dumps(value if isinstance(value, bool | int | float) else str(value), ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # JSON takes this character as it is, TOML does not


if __name__ == "__main__":
    print(page(), end="")
