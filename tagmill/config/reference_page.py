"""Make docs/configuration.md from the settings model; a test compares them.

`python -m tagmill.config.reference_page` prints the page.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tagmill.config.kafka import KafkaJournalEventsSettings, KafkaJournalSettings, TopicColumn, TopicSettings
from tagmill.config.settings import KINDS, Settings
from tagmill.config.tag_views import OtherReader, PipelineSettings

HEAD = """# Configuration

One TOML file: `--config`, else `$TAGMILL_CONFIG`, else `./tagmill.toml`. `TAGMILL_<SECTION>__<KEY>` in the environment overrides a
key. Unknown keys are errors. Relative paths count from the folder of the file. User names and passwords come from the environment or from
Airflow's connections only.

This page is made from the settings model: `python -m tagmill.config.reference_page`.
"""
# Sections of a pipeline that get tables of their own.
SECTIONS = ("quality", "cleanup")


def page() -> str:
    """Return the text of docs/configuration.md."""
    parts = [HEAD]
    for name, field in Settings.model_fields.items():
        if name not in KINDS.values():
            parts.append(f"\n## [{name}]\n\n{_table(field.annotation)}")
    parts.append(f"\n## [pipelines.NAME]\n\n{_table(PipelineSettings)}")
    for section in SECTIONS:
        parts.append(
            f"\n## [pipelines.NAME.{section}]\n\n{_table(PipelineSettings.model_fields[section].annotation)}"
        )
    parts.append(f"\n## [[pipelines.NAME.cleanup.other_readers]]\n\n{_table(OtherReader)}")
    parts.append(f'\n## [pipelines.NAME], kind = "kafka_journal"\n\n{_table(KafkaJournalSettings)}')
    parts.append(
        f'\n## [pipelines.NAME], kind = "kafka_journal_events"\n\n{_table(KafkaJournalEventsSettings)}'
    )
    parts.append(f'\n## [pipelines.NAME], kind = "topic"\n\n{_table(TopicSettings)}')
    parts.append(f"\n## [[pipelines.NAME.columns]], of a topic\n\n{_table(TopicColumn)}")
    return "".join(parts)


def _table(model: Any) -> str:
    return "| key | default | meaning |\n|---|---|---|\n" + "".join(_lines(model))


def _lines(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name not in SECTIONS:
            yield f"| `{field.alias or name}` | {_default(field)} | {field.description or ''} |\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel):
        return f"`{default.model_dump(by_alias=True)}`"
    return "" if default in (None, PydanticUndefined) else f"`{default}`"


if __name__ == "__main__":
    print(page(), end="")
