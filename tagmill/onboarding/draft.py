"""Define what a proposal for the configuration file consists of."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from tagmill.onboarding.toml_file import Section


@dataclass(slots=True)
class Draft:
    """Sections of the file, and what a person should know about them.

    `facts`: lines that say what was seen. `not_told`: what the servers could not say. `commands`: the
    commands to run next. `pipelines`: names of the pipelines.
    """

    sections: list[Section] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    not_told: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    pipelines: list[str] = field(default_factory=list)

    def extend(self, other: "Draft") -> None:
        """Append another draft's content."""
        for name in ("sections", "facts", "warnings", "not_told", "commands", "pipelines"):
            getattr(self, name).extend(getattr(other, name))


def plain_name(text: str, taken: Collection[str] = (), longest: int = 36) -> str:
    """Return an identifier that resembles a text, and is none of the taken ones.

    The default length leaves room for the names of tables that stand next to a destination.
    """
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")[:longest]
    name = name if name and name[0].isalpha() else f"p_{name}"[:longest].rstrip("_")
    lower, number, result = {one.lower() for one in taken}, 2, name
    while result.lower() in lower:
        result = f"{name[: longest - len(str(number)) - 1]}_{number}"
        number += 1
    return result
