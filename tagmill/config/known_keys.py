"""Tell which keys a section of the configuration has, from the settings model."""

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel


def keys_at(model: type[BaseModel], place: Iterable[str]) -> set[str]:
    """Return the keys that the section at a place has; names of pipelines and indexes of lists are steps, too."""
    models = [model]
    for step in place:
        below = [found for one in models for found in _models(_annotation(one, step))]
        models = below or models
    return {field.alias or name for one in models for name, field in one.model_fields.items()}


def _annotation(model: type[BaseModel], key: str) -> Any:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    return fields[key].annotation if key in fields else None


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation consists of, such as those of a list or a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
