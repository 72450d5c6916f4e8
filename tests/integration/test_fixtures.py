"""Fixture journals arrive in Cassandra as the plugin wrote them."""

import pytest

from local.fixtures import TABLES, Case, load_case
from tagmill.errors import ConfigurationError


@pytest.mark.parametrize(
    "name", ["orders", "odd-names", "minute-buckets", "null-event", "legacy-tags", "deleted-events"]
)
def test_loaded_case_has_all_recorded_rows(stack, keyspace, name):
    """Load a case: every table has the recorded rows, compared column by column."""
    loaded, case = keyspace(name), Case(name)
    for table in TABLES:
        recorded = case.table(table)
        found = list(stack.session.execute(f"SELECT * FROM {loaded}.{table}"))
        assert len(found) == recorded.num_rows, table
        for column in recorded.column_names:
            assert sorted(map(_plain, recorded[column].to_pylist())) == sorted(
                _plain(getattr(row, column)) for row in found
            ), column


def test_the_setting_factory_names_the_case_s_tags(keyspace, settings):
    configured = settings(
        keyspace("odd-names"), case="odd-names", sections={"cassandra": {"request_timeout_seconds": 5}}
    )
    (pipeline,) = configured.pipelines.values()
    assert sorted(pipeline.tags) == Case("odd-names").tags
    assert configured.cassandra.request_timeout_seconds == 5


def test_loading_again_leaves_the_same_rows(stack, keyspace):
    loaded = keyspace("gap-middle")
    before = sorted(map(str, stack.session.execute(f"SELECT * FROM {loaded}.tag_views")))
    load_case(stack.session, "gap-middle", loaded)
    assert sorted(map(str, stack.session.execute(f"SELECT * FROM {loaded}.tag_views"))) == before


def test_unknown_case_names_known_ones(stack):
    """Refuse an unknown case in one line that names the known ones."""
    with pytest.raises(ConfigurationError, match="no fixture case 'nope'.*orders"):
        load_case(stack.session, "nope", "nope")


def _plain(value):
    if value is None or value == set() or value == []:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    return str(sorted(value)) if hasattr(value, "__iter__") and not isinstance(value, str) else str(value)
