"""Define a finding of the doctor, and which pipelines are examined."""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from tagmill.config.kafka import KafkaJournalEventsSettings, KafkaJournalSettings, TopicSettings
from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain.nearest import did_you_mean
from tagmill.errors import ConfigurationError

T = TypeVar("T")
# What a message says of work that the doctor never does.
OF_WORK = re.compile(
    r"\.? ?\b(Nothing was [a-z ]+|Run the same command again|every step is safe to repeat)(?=[.;]|$)"
)


class Level(Enum):
    """Level of a finding. A check that could not be made is a WARNING, never FINE."""

    FINE = "✓"
    WARNING = "!"
    WRONG = "✗"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check: what was seen, and what to do unless it is FINE."""

    check: str
    level: Level
    said: str
    cure: str = ""


# Checks that yield their findings, and those that also return what later checks need.
Findings = Iterator[Finding]
Checked = Generator[Finding, None, T]


def fine(check: str, said: str) -> Finding:
    """Return a finding with nothing to do."""
    return Finding(check, Level.FINE, said)


def warning(check: str, said: str, cure: str = "") -> Finding:
    """Return a finding that a first run survives."""
    return Finding(check, Level.WARNING, said, cure)


def wrong(check: str, said: str, cure: str = "") -> Finding:
    """Return a finding that stops a first run."""
    return Finding(check, Level.WRONG, said, cure)


def not_checked(check: str, why: str, cure: str = "") -> Finding:
    """Return the finding of a check that could not be made."""
    return Finding(check, Level.WARNING, f"not checked: {why}", cure)


def said_of(error: BaseException) -> str:
    """Return the message of an error in one line, without what it says of work that was left undone."""
    text = OF_WORK.sub("", " ".join(str(error).split()))
    return re.sub(r"([.;]\s*)+$", "", re.sub(r"([.;])\s*[.;]+", r"\1", text))


@dataclass(frozen=True)
class Scope:
    """The configuration, and the pipelines of each kind that are examined."""

    settings: Settings
    views: dict[str, PipelineSettings] = field(default_factory=dict)
    topics: dict[str, TopicSettings] = field(default_factory=dict)
    journals: dict[str, KafkaJournalSettings] = field(default_factory=dict)
    journal_events: dict[str, KafkaJournalEventsSettings] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings, pipeline: str | None) -> "Scope":
        """Return the named pipeline, or all of them; raises ConfigurationError if it is not configured."""
        kinds = (settings.pipelines, settings.topics, settings.kafka_journals, settings.kafka_journal_events)
        names = [name for kind in kinds for name in kind]
        if pipeline is not None and pipeline not in names:
            raise ConfigurationError(
                f"pipeline {pipeline!r} is not in the configuration (there: {', '.join(names) or 'none'})"
                f"{did_you_mean(pipeline, names)}",
                pipeline=pipeline,
            )
        views, topics, journals, events = (
            {name: configured for name, configured in kind.items() if pipeline in (None, name)}
            for kind in kinds
        )
        return cls(settings, views, topics, journals, events)  # type: ignore[arg-type]

    @property
    def delivering(self) -> dict[str, PipelineSettings | TopicSettings | KafkaJournalEventsSettings]:
        """The pipelines that write to ClickHouse, by name."""
        return {**self.views, **self.topics, **self.journal_events}

    @property
    def reading_kafka(self) -> dict[str, TopicSettings | KafkaJournalSettings]:
        """The pipelines that read topics, by name."""
        return {**self.topics, **self.journals}

    @property
    def journal_keyspaces(self) -> dict[str, bool]:
        """The keyspaces of Kafka Journals, and whether a pipeline replicates to them."""
        return {configured.keyspace: False for configured in self.journal_events.values()} | {
            configured.keyspace: True for configured in self.journals.values()
        }

    @property
    def names(self) -> list[str]:
        """The names of all pipelines that are examined."""
        return [*self.delivering, *self.journals]
