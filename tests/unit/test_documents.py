"""Documents are true: the configuration page is the model's, links lead somewhere, the compose file fits its
schema.
"""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from tagmill.config.reference_page import page

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "bench" / "README.md"]


def test_the_configuration_page_is_made_from_the_model():
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == page(), (
        "python -m tagmill.config.reference_page > docs/configuration.md"
    )


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(file):
    for target in re.findall(r"\]\(([^)#]+)", file.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_the_compose_file_fits_the_compose_specification():
    # This is the specification's schema as docker-compose 1.29 ships it (Apache License 2.0).
    schema = json.loads((ROOT / "tests" / "fixtures" / "compose-spec.json").read_text(encoding="utf-8"))
    content = yaml.safe_load((ROOT / "docker-compose.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(content, schema)
    assert {"cassandra", "clickhouse", "spark-master", "spark-worker", "postgres"} <= set(content["services"])
