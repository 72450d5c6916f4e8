"""Make the JSON Schema of the configuration file, by which editors complete and check it."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, create_model

from tagmill.config.base import Identifier
from tagmill.config.environment import SECRETS
from tagmill.config.kafka import KafkaJournalEventsSettings, KafkaJournalSettings, TopicSettings
from tagmill.config.settings import KINDS, Settings
from tagmill.config.tag_views import PipelineSettings

TITLE = "Configuration of Tagmill"
Pipeline = Annotated[
    PipelineSettings | KafkaJournalSettings | KafkaJournalEventsSettings | TopicSettings,
    Field(discriminator="kind"),
]


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the file: its sections, and pipelines told apart by `kind`."""
    sections: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in Settings.model_fields.items()
        if name not in KINDS.values()
    }
    pipelines: Any = Field(
        default_factory=dict, description="Pipelines by name; `kind` says what each reads."
    )
    model = create_model(
        "Configuration",
        __config__=ConfigDict(extra="forbid", title=TITLE),
        **sections,
        pipelines=(dict[Identifier, Pipeline], pipelines),
    )
    made = model.model_json_schema(by_alias=True)
    made["properties"]["pipelines"]["additionalProperties"] = False
    for definition in made["$defs"].values():
        for key in SECRETS:  # the file must not have them
            definition.get("properties", {}).pop(key, None)
    for name in sections:  # a default that holds a whole section says nothing to a reader
        made["properties"][name].pop("default", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
