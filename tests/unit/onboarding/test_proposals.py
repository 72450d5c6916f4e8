"""What is proposed for journals and topics, odd ones included, is a configuration that can be loaded."""

import json
import tomllib
from datetime import UTC, datetime
from types import SimpleNamespace

import jsonschema
import pytest

from tagmill.cassandra.schema import Table
from tagmill.config.json_schema import schema
from tagmill.config.settings import Settings
from tagmill.domain.journal_tables import JournalTables
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import lowest
from tagmill.errors import ConfigurationError
from tagmill.kafka.client import KafkaRecord
from tagmill.onboarding.bucket_sizes import Detection
from tagmill.onboarding.consistency import Replication, for_ledger, must_ask, reads_for, warnings
from tagmill.onboarding.draft import plain_name
from tagmill.onboarding.init import Proposal, addresses, write
from tagmill.onboarding.journal_layout import Layout, generation, kind_of, layout_of
from tagmill.onboarding.journal_proposal import EARLIEST, journal_draft
from tagmill.onboarding.journal_survey import (
    SAMPLED_ROWS,
    JournalSurvey,
    Payload,
    PayloadKind,
    TagFacts,
    estimate,
    excerpt,
)
from tagmill.onboarding.questions import take_proposal
from tagmill.onboarding.toml_file import render
from tagmill.onboarding.topic_proposal import topic_draft
from tagmill.onboarding.topic_survey import TopicSample, guess_format
from tests.support.kafka import append_header

HOUR = 3_600_000
FIRST = 490_000 * HOUR
ODD = 'line\nend # " \\ \x7f \u2028 [x]'
JOURNAL = Layout({"messages": ["messages"], "view": ["tag_views"], "metadata": ["metadata"]})


def known(**values) -> JournalSurvey:
    """Return a survey with some buckets of hours."""
    facts = {
        "keyspace": "orders",
        "layout": JOURNAL,
        "tables": JournalTables("orders"),
        "generation": "a plugin",
        "replication": Replication("SimpleStrategy", {"": 1}),
        "tags": [TagFacts("order", [FIRST, FIRST + HOUR], 5000.0, 300)],
        "size": Detection(BucketSize.HOUR, True, "all 2 timebuckets are whole hours"),
        "has_progress": True,
    }
    return JournalSurvey(**{**facts, **values})


def loaded(draft) -> Settings:
    """Return the settings of a draft's file, which also has to fit the JSON Schema."""
    text = render(["head"], draft.sections)
    content = tomllib.loads(text)
    jsonschema.validate(json.loads(json.dumps(content, default=str)), schema())
    return Settings.of(content, "test")


def records(*values: bytes | None, headers=()) -> list[KafkaRecord]:
    at = datetime(2026, 11, 21, tzinfo=UTC)
    return [KafkaRecord("t", 0, n, at, b"k", value, list(headers)) for n, value in enumerate(values)]


def of_topic(*values: bytes | None, **options):
    sample = TopicSample("shop.products", 1, len(values), records(*values))
    return topic_draft(sample, "products", "products", take_proposal, **options)


def test_journal_draft_of_known_view() -> None:
    draft = journal_draft(known(), "orders", "orders", take_proposal)
    pipeline = loaded(draft).pipelines["orders"]
    assert (pipeline.bucket_size, pipeline.tags, pipeline.views) == ("Hour", ["order"], "application")
    assert (
        f"{pipeline.first_time_bucket:%Y%m%dT%H:%M}"
        == f"{datetime.fromtimestamp(FIRST / 1000, UTC):%Y%m%dT%H:%M}"
    )
    assert draft.commands == ["run deliver -p orders"] and not draft.not_told


def test_journal_draft_quotes_odd_names() -> None:
    """Tags, manifests and ids that would end a comment or a value of the file stay what they are."""
    payloads = [PayloadKind(Payload(1, ODD, ODD), 5, 9, ODD, 1, ODD, text=True)]
    survey = known(tags=[TagFacts(ODD, [FIRST]), TagFacts("", [FIRST])], payloads=payloads, sampled_events=5)
    assert loaded(journal_draft(survey, "orders", "orders", take_proposal)).pipelines["orders"].tags == [ODD]


def test_journal_draft_of_empty_journal_needs_tags() -> None:
    """A journal without events: nobody but a person knows its tags; the rest is proposed."""
    survey = known(tags=[], size=Detection(None, False, "the view has no rows"))
    with pytest.raises(ConfigurationError, match=r"Give --tag"):
        journal_draft(survey, "orders", "orders", take_proposal)
    pipeline = loaded(journal_draft(survey, "orders", "orders", take_proposal, ["a"])).pipelines["orders"]
    assert pipeline.bucket_size == "Hour" and pipeline.first_time_bucket.date() == datetime.now(UTC).date()


@pytest.mark.parametrize(
    ("facts", "views"),
    [
        ({"layout": Layout({"messages": ["messages"]})}, "tagmill"),
        ({"tagged_events": 5, "has_progress": False}, "tagmill"),
        ({"tagged_events": 5}, "application"),
        ({"tagged_events": 0, "has_progress": False}, "application"),
    ],
    ids=["no view", "empty view, tagged events", "empty view, progress", "no tags at all"],
)
def test_journal_draft_of_missing_view(facts, views) -> None:
    """Propose that Tagmill builds the view where tagged events have none."""
    first = int(datetime(2026, 11, 21, 9, 30, tzinfo=UTC).timestamp() * 1000)
    survey = known(
        tags=[TagFacts("order")], size=Detection(None, False, "no rows"), first_event=first, **facts
    )
    draft = journal_draft(survey, "orders", "orders", take_proposal)
    pipeline = loaded(draft).pipelines["orders"]
    assert pipeline.views == views and ("views build -p orders" in draft.commands) == (views == "tagmill")
    assert pipeline.first_time_bucket == datetime(2026, 11, 21, tzinfo=UTC)


def test_journal_draft_of_large_view_says_so() -> None:
    """A view that can't be listed: the plugin's first bucket, no more tags than fit, and a line for each."""
    tags = [TagFacts(f"t{n}", [FIRST] * (n + 1)) for n in range(300)]
    draft = journal_draft(known(tags=tags, view_listed=False), "orders", "orders", take_proposal)
    pipeline = loaded(draft).pipelines["orders"]
    assert f"{pipeline.first_time_bucket:%Y%m%dT%H:%M}" == EARLIEST
    assert len(pipeline.tags) == 200 and "t299" in pipeline.tags and "t0" not in pipeline.tags
    assert [line.partition(":")[0] for line in draft.not_told] == ["tags", "tags", "first_time_bucket"]


def test_journal_draft_of_large_journal_without_view() -> None:
    """A journal that can't be listed: its first bucket is for a person to say, since readers look into each."""
    journal = {
        "layout": Layout({"messages": ["messages"]}),
        "tags": [TagFacts("order")],
        "first_event": FIRST,
    }
    draft = journal_draft(known(**journal, messages_listed=False), "orders", "orders", take_proposal)
    pipeline = loaded(draft).pipelines["orders"]
    assert f"{pipeline.first_time_bucket:%Y%m%dT%H:%M}" == EARLIEST
    (said,) = (line for line in draft.not_told if line.startswith("first_time_bucket"))
    assert "there is no view" in said and "set the first one" in render([], draft.sections)


def test_overwritten_file_keeps_mode_and_link(tmp_path) -> None:
    """Write the file anew through a link: both stay, and others may read it as before."""
    draft = journal_draft(known(), "orders", "orders", take_proposal)
    proposal, real, link = (
        Proposal(render(["head"], draft.sections), draft),
        tmp_path / "real",
        tmp_path / "link",
    )
    real.write_text("old")
    real.chmod(0o644)
    link.symlink_to(real)
    write(proposal, link, overwrite=True)
    assert link.is_symlink() and real.read_text() == proposal.text and real.stat().st_mode & 0o777 == 0o644


def test_tables_are_told_by_their_keys() -> None:
    """Renamed tables are found, the default's name wins, and other tables are none of a journal's."""
    pid = ("persistence_id",)
    tables = [
        Table("happened", {"event": "blob", "meta_ser_id": "int"}, (*pid, "partition_nr"), ("sequence_nr",)),
        Table("by_tag_old", {}, ("tag_name", "timebucket"), ("timestamp",)),
        Table("tag_views", {}, ("tag_name", "timebucket"), ("timestamp",)),
        Table("about", {"persistence_id": "text", "deleted_to": "bigint"}, pid),
        Table("pids", {"persistence_id": "text"}, pid),
        Table("tag_scanning", {"persistence_id": "text", "sequence_nr": "bigint"}, pid),
        Table("tag_write_progress", {}, pid, ("tag",)),
        Table("saved", {"snapshot_data": "blob"}, pid, ("sequence_nr",)),
        Table("customers", {"id": "int"}, ("id",)),
    ]
    layout = layout_of(tables)
    assert layout.tables == {
        "messages": ["happened"],
        "view": ["tag_views", "by_tag_old"],
        "metadata": ["about"],
        "all_persistence_ids": ["pids"],
        "snapshots": ["saved"],
    }
    assert kind_of(tables[-1]) is None and not layout_of([]).is_journal
    assert "1.x" in generation(tables[0].columns, layout)
    old = generation({"message": "blob", "tag1": "text"}, Layout())
    assert "0.10" in old and "0.80" in old and "1.0" in old


@pytest.mark.parametrize(
    ("options", "writes", "reads", "warned"),
    [
        ({"class": "SimpleStrategy", "replication_factor": "1"}, "QUORUM", "LOCAL_QUORUM", "1 copies"),
        ({"class": "NetworkTopologyStrategy", "a": "3"}, "QUORUM", "LOCAL_QUORUM", None),
        ({"class": "NetworkTopologyStrategy", "a": "3", "b": "3"}, "QUORUM", "QUORUM", None),
        ({"class": "NetworkTopologyStrategy", "a": "3", "b": "3"}, "LOCAL_QUORUM", "LOCAL_QUORUM", None),
        ({"class": "NetworkTopologyStrategy", "a": "3", "b": "3"}, "ONE", "ALL", None),
        ({"class": "NetworkTopologyStrategy", "b": "3"}, "LOCAL_QUORUM", "QUORUM", "no copy in datacenter a"),
        ({"class": "NetworkTopologyStrategy", "a": "3/1"}, "ALL", "LOCAL_ONE", None),
    ],
)
def test_consistency_overlaps_writes(options, writes, reads, warned) -> None:
    found = Replication.of({**options, "class": f"org.apache.cassandra.locator.{options['class']}"})
    assert reads_for(writes, found, "a") == reads
    assert must_ask(found) == (len(found.factors) > 1)
    assert any(warned in text for text in warnings(found, "a")) if warned else not warnings(found, "a")


def test_ledger_replication_is_journals_if_possible() -> None:
    journal = Replication("NetworkTopologyStrategy", {"a": 3, "b": 3})
    assert for_ledger(journal, {"a": 5, "b": 5}, "a") == journal
    assert for_ledger(journal, {"a": 5, "c": 5}, "c").options() == {
        "class": "NetworkTopologyStrategy",
        "c": 3,
    }
    assert for_ledger(None, {"a": 1}, "a").options() == {"class": "SimpleStrategy", "replication_factor": 1}
    assert for_ledger(None, {"a": 2, "b": 9}, "a").factors == {"a": 2}


def test_topic_draft_of_json() -> None:
    """Key, time and columns of JSON events; duplicates, a tombstone and an unreadable record don't matter."""
    values = [
        json.dumps({"event_id": n, "at": {"created_at": "2026-11-21T10:00:00Z"}, "price": n / 2}).encode()
        for n in range(40)
    ]
    draft = of_topic(*values, values[0], None, b"{")
    topic = loaded(draft).topics["products"]
    assert (topic.format, topic.unique_id, topic.producer_id) == ("json", [], "event_id")
    assert topic.created_at == "at.created_at" and draft.warnings
    assert {column.name: column.type for column in topic.columns} == {
        "event_id": "Int64", "at_created_at": "DateTime64(3, 'UTC')", "price": "Float64",
    }  # fmt: skip


def test_topic_draft_of_empty_topic_needs_key() -> None:
    for values in ((), (None, None)):
        with pytest.raises(ConfigurationError, match=r"Give --unique-id"):
            of_topic(*values)
        topic = loaded(of_topic(*values, unique_id=["id"])).topics["products"]
        assert (topic.format, topic.unique_id, topic.columns) == ("json", ["id"], [])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([b"\x00\x00\x00\x00\x07abc"] * 3, "--schema-file 7=FILE"),
        ([b"Obj\x01rest"] * 3, "whole Avro files"),
        ([b"[1]", b"2"], "JSON, but no objects"),
        ([b"\x02\x04"], "--schema-file 1=FILE"),
    ],
    ids=["framed", "Avro files", "JSON lists", "binary"],
)
def test_topic_draft_without_schema_is_refused(values, message) -> None:
    with pytest.raises(ConfigurationError, match="Nothing was written") as error:
        of_topic(*values)
    assert message in str(error.value)


def test_topic_draft_of_avro_reads_schema(tmp_path) -> None:
    """Framed Avro with its schema: columns come from the decoded events."""
    file = tmp_path / "product.avsc"
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}]
    file.write_text(json.dumps({"type": "record", "name": "P", "fields": fields}))
    values = [b"\x00\x00\x00\x00\x07" + bytes([2 * n, 2, 2, 97 + n]) for n in range(5)]
    draft = of_topic(*values, schema_files={"7": file})
    topic = loaded(draft).topics["products"]
    assert (topic.format, topic.framed, topic.producer_id) == ("avro", True, "id")
    assert {column.name: column.type for column in topic.columns} == {"id": "Int64", "name": "String"}
    with pytest.raises(ConfigurationError, match="none of 5 sampled records can be read as avro"):
        of_topic(*values, schema_files={"8": file})


def test_kafka_journal_is_recognized() -> None:
    header = append_header(1, 1, "json")
    assert guess_format(records(b"{}", b"x", headers=[header])).format == "journal"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("db", (["db"], 9042)),
        ("db:19042", (["db"], 19042)),
        ("a:1, b:1", (["a", "b"], 1)),
        ("::1", (["::1"], 9042)),
        ("[::1]:7", (["::1"], 7)),
        ("a:1,b:2", None),
        ("a:x", None),
        ("a:70000", None),
        (":1", None),
        ("", None),
    ],
)
def test_addresses_are_split(text, expected) -> None:
    if expected is None:
        with pytest.raises(ConfigurationError, match="Nothing was written"):
            addresses(text, 9042, "--cassandra")
    else:
        assert addresses(text, 9042, "--cassandra") == expected


def test_payload_excerpt_is_one_line() -> None:
    assert excerpt(None) == ("null", False)
    assert excerpt(b'{"a":\n  1}') == ('{"a": 1}', True)
    assert excerpt(b"\x00\xff") == ("0x00ff", False)
    assert excerpt(b"") == ("0x", False)
    assert len(excerpt(b"x" * 500)[0]) == 61


def test_plain_name_is_an_unused_identifier() -> None:
    assert plain_name("shop.products-v2") == "shop_products_v2"
    assert plain_name("Orders", {"orders", "orders_2"}) == "Orders_3"
    assert plain_name("9") == "p_9" and plain_name("ключ") == "p"
    assert len(plain_name("x" * 99, {"x" * 36})) == 36


def test_rows_of_large_bucket_are_estimated_by_time() -> None:
    """The first thousand rows cover a tenth of the bucket's time: ten thousand are there."""
    begin = FIRST * 10_000
    first = [SimpleNamespace(timestamp=lowest(begin + n * 10_000_000)) for n in range(SAMPLED_ROWS)]
    last = [SimpleNamespace(timestamp=lowest(begin + 9_990 * 10_000_000))]
    assert estimate(first, last) == (10_000, FIRST + 9_990_000)
    assert estimate(first[:5], first[4:5]) == (5, FIRST + 4000)
    assert estimate([], []) == (0, None)
