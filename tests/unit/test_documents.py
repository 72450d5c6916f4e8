"""Documents are true: the configuration page is the model's, links lead somewhere, the compose file fits its
schema.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
import yaml

from tagmill.cli.main import app
from tagmill.cli.reference_page import page as command_line
from tagmill.config.reference_page import page

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "bench" / "README.md"]
# Pages of today; decisions and changes may name what former versions had.
TODAY = [file for file in PAGES if "decisions" not in file.parts and file.name != "CHANGELOG.md"]


def test_the_configuration_page_is_made_from_the_model():
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == page(), (
        "python -m tagmill.config.reference_page > docs/configuration.md"
    )


def test_command_line_page_is_made_from_commands() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == command_line(), (
        "python -m tagmill.cli.reference_page > docs/cli.md"
    )


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(file):
    for target in re.findall(r"\]\(([^)#]+)", file.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def commands(text: str) -> Iterator[str]:
    """Yield the command lines of a page: in its text, and in its examples for a shell."""
    yield from re.findall(r"`(tagmill [^`]+)`", text)
    for example in re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.DOTALL):
        yield from (line.partition("#")[0] for line in example.splitlines() if line.startswith("tagmill "))


def unknown(line: str) -> list[str]:
    """Return the commands and options of a command line that the program does not have."""
    command: Any = typer.main.get_command(app)
    parts = [command]
    for word in line.split()[1:]:
        if word in getattr(command, "commands", {}):
            command = command.commands[word]
            parts.append(command)
        elif len(parts) == 1 and word[0].isalpha() and word.islower():
            return [word]
    options = {option for part in parts for given in part.params for option in given.opts}
    return [option for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", line) if option not in options]


@pytest.mark.parametrize("file", TODAY, ids=lambda file: str(file.relative_to(ROOT)))
def test_commands_in_pages_exist(file: Path) -> None:
    """Pages name commands and options that the program has."""
    text = file.read_text(encoding="utf-8")
    assert {line: unknown(line) for line in commands(text) if unknown(line)} == {}


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_paths_in_pages_exist(file: Path) -> None:
    """Pages name folders and files that the checkout has."""
    folders = "tagmill|tests|schema|local|dags|spark_jobs|plugins|bin|bench|docs|locks"
    paths = re.findall(rf"`((?:{folders})/[\w/.-]+)`", file.read_text(encoding="utf-8"))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_unknown_command_in_page_is_found() -> None:
    """The check of pages sees a wrong command and a wrong option."""
    assert unknown("tagmill run deliver -p P --reread") == ["--reread"]
    assert unknown("tagmill statuses") == ["statuses"]
    assert unknown("tagmill --config FILE run deliver --pipeline P --json") == []


def test_the_compose_file_fits_the_compose_specification():
    # This is the specification's schema as docker-compose 1.29 ships it (Apache License 2.0).
    schema = json.loads((ROOT / "tests" / "fixtures" / "compose-spec.json").read_text(encoding="utf-8"))
    content = yaml.safe_load((ROOT / "docker-compose.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(content, schema)
    assert {"cassandra", "clickhouse", "spark-master", "spark-worker", "postgres"} <= set(content["services"])
