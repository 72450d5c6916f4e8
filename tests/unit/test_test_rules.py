"""Rules that keep tests and errors apart from texts: errors say what they are about in attributes, and tests
read the ledger as the library does.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tagmill import errors
from tagmill.ledger import schema

ROOT = Path(__file__).resolve().parents[2]
TABLES = sorted(
    {
        name
        for file in (schema.FOLDER / "cassandra").glob("*.cql")
        for name in re.findall(r"CREATE TABLE IF NOT EXISTS \S+?\.(\w+)", file.read_text())
    }
)
# A table of the ledger behind its keyspace, which has a name or is a value that an f-string takes in.
NAMED = re.compile(rf"(?:\btagmill_test|\{{\}})\.(?:{'|'.join(TABLES)})\b")
# Statements that forge or damage the ledger, or give rights on it, read nothing.
CHANGES = re.compile(r"\s*(INSERT|UPDATE|DELETE|TRUNCATE|CREATE|ALTER|DROP|GRANT|REVOKE)\b")
# Files that read tables of the ledger by CQL, each with the reason why no public read does it.
READS_BY_CQL = {
    "tests/faults/conftest.py": "no read lists progress without the names of its persistence ids",
    "tests/integration/test_erase.py": "an erased plan must leave no part, and no read shows parts",
    "tests/integration/test_ledger.py": "an erased plan must leave no part, and no read shows parts",
    "tests/integration/test_rights.py": "it gives and takes rights on tables by name",
    "tests/support/building.py": "no read lists the numbers of all persistence ids of a journal",
    "tests/support/cleaning.py": "no read lists the cleaned partitions of a tag; it forges audits",
    "tests/support/topics.py": "no read lists the ids of a pipeline under all rules",
}

# Errors name a pipeline, a run or a batch in front of its value, or the key of a pipeline's section.
ABOUT = {
    "pipeline": re.compile(r"(\bpipeline |\bpipelines\.)$"),
    "run": re.compile(r"(?<!backfill )\brun $"),
    "batch": re.compile(r"\bbatch $"),
}


def parsed(folder: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield path and syntax tree of each file below a folder of the project."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        yield str(file.relative_to(ROOT)), ast.parse(file.read_text())


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield each string, with {} for a value that an f-string takes in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def reads_ledger(text: str) -> bool:
    """Return whether a string of a test reads a table of the ledger."""
    return NAMED.search(text) is not None and CHANGES.match(text) is None


def missing_attributes(call: ast.Call) -> set[str]:
    """Return what an error names in its message and does not carry as an attribute."""
    given = {keyword.arg for keyword in call.keywords}
    ends = [
        text.value
        for message in call.args[:1]
        for joined in ast.walk(message)
        if isinstance(joined, ast.JoinedStr)
        for text, value in zip(joined.values, joined.values[1:], strict=False)
        if isinstance(text, ast.Constant) and isinstance(value, ast.FormattedValue)
    ]
    named = {name for name, before in ABOUT.items() if any(before.search(str(end)) for end in ends)}
    return named - given


def test_ledger_is_read_by_public_reads() -> None:
    """Only the listed files read the ledger's tables by CQL, and each of them does."""
    reading = {
        path
        for path, tree in parsed("tests")
        if path != "tests/unit/test_test_rules.py" and any(map(reads_ledger, texts(tree)))
    }
    assert reading == set(READS_BY_CQL)


def test_reading_statements_are_recognized() -> None:
    assert {"runs", "progress", "view_waiting"} < set(TABLES)
    for text in ("SELECT run FROM tagmill_test.runs", "SELECT * FROM {}.progress", "{}.runs WHERE run = 1"):
        assert reads_ledger(text)
    for text in ("DELETE FROM {}.runs", "UPDATE tagmill_test.progress", "SELECT * FROM {}.messages"):
        assert not reads_ledger(text)


def test_private_names_are_not_imported() -> None:
    """What a test asserts has a public name; only the product's own modules import its private ones."""
    imported = [
        (path, alias.name)
        for path, tree in parsed("tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("tagmill.", "local."))
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert imported == []


def test_errors_carry_what_their_messages_name() -> None:
    """Where a message names a pipeline, a run or a batch, the error carries it for Airflow and scripts."""
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    raised = [
        (path, call.lineno, missing_attributes(call))
        for path, tree in parsed("tagmill")
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in kinds
    ]
    assert len(raised) > 250
    assert [error for error in raised if error[2]] == []


def test_missing_attribute_is_recognized() -> None:
    (call,) = (
        node
        for node in ast.walk(ast.parse("E(f'run {n} of pipeline {p}', run=n)"))
        if isinstance(node, ast.Call)
    )
    assert missing_attributes(call) == {"pipeline"}
