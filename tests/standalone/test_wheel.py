"""The wheel, as `pip install "tagmill[spark]"` gives it: in an environment of its own, in a folder that is no
checkout.
"""

import os
import subprocess
import sys

from tests.support.building import recorded
from tests.support.delivery import as_row, clickhouse_rows
from tests.support.wheel import built_wheel, empty_environment, uv


def test_wheel_delivers_without_a_checkout(stack, keyspace, settings, tmp_path):
    """The installed wheel shows its help, creates the tables and delivers."""
    case = "odd-names"
    configured = settings(
        keyspace(case),
        case=case,
        sections={
            "cassandra": {"ledger_keyspace": f"l_{os.urandom(4).hex()}"},
        },
    )
    (name,) = configured.pipelines
    file = settings.file(name)

    programs = empty_environment(tmp_path / "venv", sys.executable, "spark.txt")
    uv(
        "pip",
        "install",
        "--quiet",
        "--python",
        programs / "python",
        "--no-deps",
        built_wheel(tmp_path / "dist"),
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"} | {"COLUMNS": "400"}

    def tagmill(*arguments: str) -> str:
        command = [programs / "tagmill", "--config", file, *arguments]
        done = subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        assert "schema" in tagmill("--help")
        assert f"clickhouse table default.{name}" in tagmill("schema", "apply")
        tagmill("run", "deliver", "-p", name)
    finally:
        stack.session.execute(f"DROP KEYSPACE IF EXISTS {configured.cassandra.ledger_keyspace}")
    assert clickhouse_rows(configured, name) == sorted(map(as_row, recorded(case, "tag_views")))
    assert list(elsewhere.iterdir()) == []
