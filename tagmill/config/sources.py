"""Tell where each value of the effective configuration comes from, without showing a secret."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from tagmill.config.environment import FILE, SECRETS, environment_source
from tagmill.config.settings import KINDS, Settings, file_of, read_toml
from tagmill.domain.urls import MASK, without_password

# Names of settings of Spark whose values are secrets: those of Spark's own spark.redaction.regex, and other keys of
# storages.
SECRET_NAMES = re.compile(r"(?i)secret|password|token|(access|account|private)[.]?key")
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A key with its value, secrets masked, and its source: the file, a variable of the environment, an
    Airflow connection, or the default.
    """

    key: str
    value: Any
    source: str


def effective(path: str | Path | None) -> list[Value]:
    """Return all keys of the configuration that a command would use; raises ConfigurationError."""
    settings, file = Settings.load(path), file_of(path)
    content = read_toml(file)
    environment = environment_source(Settings)()
    return [
        Value(
            ".".join(key), _masked(key, value), _source(key, value, settings, str(file), content, environment)
        )
        for key, value in _leaves(settings)
    ]


def _leaves(settings: Settings) -> Iterator[tuple[Key, Any]]:
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if name in KINDS.values():
            for pipeline, section in value.items():
                yield from _of_section(("pipelines", pipeline), section)
        else:
            yield from _of_section((name,), value)


def _of_section(above: Key, section: BaseModel) -> Iterator[tuple[Key, Any]]:
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), (*above, field.alias or name)
        if isinstance(value, BaseModel):
            yield from _of_section(key, value)
        else:
            yield key, value
    for name, value in (section.model_extra or {}).items():
        yield (*above, name), value


def _masked(key: Key, value: Any) -> Any:
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Mapping):
        return {
            name: MASK if SECRET_NAMES.search(name) else _masked(key, part) for name, part in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_masked(key, part) for part in value]
    if isinstance(value, str):
        return without_password(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _source(
    key: Key,
    value: Any,
    settings: Settings,
    file: str,
    content: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> str:
    if _has(environment, key):
        return f"environment variable {_variable(key)}"
    if _has(content, key):
        return file
    if value is None and key[-1] in SECRETS:
        connection = getattr(settings, key[0]).airflow_connection
        return f"not set; in Airflow the connection {connection}"
    return "default"


def _has(content: Any, key: Key) -> bool:
    for name in key:
        if not isinstance(content, Mapping):
            return False
        # Names of variables have no case.
        same = next((part for part in content if part == name), None) or next(
            (part for part in content if part.lower() == name.lower()), None
        )
        if same is None:
            return False
        content = content[same]
    return True


def _variable(key: Key) -> str:
    """Return the variable that sets a key: of its own, or of a section that has it."""
    known = {name.upper(): name for name in os.environ}
    own = f"TAGMILL_{'__'.join(key).upper()}"
    above = ("TAGMILL_" + "__".join(key[:length]).upper() for length in range(len(key) - 1, 0, -1))
    names = (own, f"{own}{FILE.upper()}", *above)
    return next((known[name] for name in names if name in known), "")
