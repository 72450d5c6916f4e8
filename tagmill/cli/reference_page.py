"""Make docs/cli.md from the commands; a test compares them.

`python -m tagmill.cli.reference_page` prints the page.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

from tagmill.cli.exit_codes import EXIT_CODES
from tagmill.cli.main import app

HEAD = """# Command line

Every command has `--help`. `tagmill --config FILE` names the configuration file; without it, `$TAGMILL_CONFIG` or `./tagmill.toml` counts.
`tagmill --install-completion` lets the shell complete commands and options.

## Exit status

| status | meaning |
|---|---|
"""
MADE = "\nThis page is made from the commands: `python -m tagmill.cli.reference_page`.\n"
KINDS = {str: "TEXT", int: "INTEGER", float: "FLOAT", Path: "FILE", datetime: "MOMENT"}
# Options of every program of this kind.
OMITTED = frozenset({"help", "install_completion", "show_completion"})


def page() -> str:
    """Return the text of docs/cli.md."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    root: Any = typer.main.get_command(app)
    return HEAD + codes + MADE + "".join(_sections(root, "tagmill"))


def _sections(command: Any, path: str) -> Iterator[str]:
    below: dict[str, Any] = getattr(command, "commands", {})
    if not below or path == "tagmill":
        yield f"\n## {path}\n\n{_text(command)}\n"
        yield from _parameters(command, path)
    for name in sorted(below):
        yield from _sections(below[name], f"{path} {name}")


def _text(command: Any) -> str:
    paragraphs = re.split(r"\n\s*\n", (command.help or "").strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs) + "\n"


def _parameters(command: Any, path: str) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    named = (one for one in command.params if one.param_type_name == "option" and not one.hidden)
    options = [one for one in named if one.name not in OMITTED]
    required = " ".join(f"{_name(one)} {_value(one)}" for one in options if one.required)
    usage = [path, *([required] if required else []), *(one.metavar or one.name.upper() for one in arguments)]
    if getattr(command, "commands", None):
        usage.append("COMMAND")
    yield f"```text\n{' '.join([*usage, '[OPTIONS]'] if options else usage)}\n```\n"
    if options or arguments:
        yield "\n| option | value | default | meaning |\n|---|---|---|---|\n"
    for one in arguments:
        yield f"| {one.metavar or one.name.upper()} | | | {_cell(one.help)} |\n"
    for one in options:
        names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
        yield f"| {names} | {_value(one)} | {_default(one)} | {_cell(one.help)} |\n"


def _name(option: Any) -> str:
    return str(max(option.opts, key=len))


def _value(option: Any) -> str:
    if option.is_flag:
        return ""
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(str(choice.value) for choice in kind)
    return KINDS.get(kind, "TEXT")


def _default(option: Any) -> str:
    if option.required:
        return "required"
    default = option.default
    return "" if default is None or default is False or default == () or callable(default) else f"`{default}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
