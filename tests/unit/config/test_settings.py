"""The configuration file and the environment: what is read, and the one line that names a mistake."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tagmill.config.settings import Settings
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import ConfigurationError

ORDERS = {
    "keyspace": '"orders"',
    "bucket_size": '"Hour"',
    "tags": '["order", "billing"]',
    "first_time_bucket": '"20261121T07:00"',
    "destination": '"orders"',
}
SEVEN = datetime(2026, 11, 21, 7, tzinfo=UTC)


def pipeline(name: str = "orders", **changes: str) -> str:
    return (
        f"[pipelines.{name}]\n"
        + "\n".join(f"{key} = {value}" for key, value in (ORDERS | changes).items())
        + "\n"
    )


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    for variable in ("TAGMILL_CONFIG", "TAGMILL_CASSANDRA__PASSWORD", "TAGMILL_CLICKHOUSE__PASSWORD"):
        monkeypatch.delenv(variable, raising=False)

    def read(text: str, **environment: str) -> Settings:
        for name, value in environment.items():
            monkeypatch.setenv(f"TAGMILL_{name}", value)
        (tmp_path / "tagmill.toml").write_text(text, encoding="utf-8")
        return Settings.load(tmp_path / "tagmill.toml")

    return read


def mistake(load: Callable[..., Settings], text: str, **environment: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        load(text, **environment)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# -- what is read


@pytest.mark.parametrize(
    ("ttl", "bucket_size", "expected"),
    [
        (86_400, "Hour", datetime(2026, 11, 20, 9, tzinfo=UTC)),
        (86_400, "Day", datetime(2026, 11, 21, tzinfo=UTC)),
    ],
    ids=["hours", "days"],
)
def test_expired_to_ends_a_bucket(
    ttl: int, bucket_size: str, expected: datetime, load: Callable[..., Settings]
) -> None:
    """The bucket that the TTL reaches within the next hour counts as expired."""
    text = pipeline(bucket_size=f'"{bucket_size}"') + f"cleanup.application_ttl_seconds = {ttl}\n"
    assert load(text).pipeline("orders").expired_to(SEVEN) == from_datetime(expected)
    assert load(pipeline()).pipeline("orders").expired_to(SEVEN) == 0


def test_load_one_pipeline_defaults_the_rest(load) -> None:
    """Files with one pipeline have defaults for all other settings."""
    settings = load(pipeline())
    assert settings.pipeline("orders").tags == ["order", "billing"]
    assert (settings.cassandra.read_consistency, settings.cassandra.port, settings.clickhouse.port) == (
        "LOCAL_QUORUM",
        9042,
        8123,
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"20261121T07:00"', SEVEN),
        ('"2026-11-21T07:00:00Z"', SEVEN),
        ('"2026-11-21T07:00"', SEVEN),
        ('"2026-11-21T08:00:00+01:00"', SEVEN),
        ("2026-11-21T07:00:00Z", SEVEN),
        ("2026-11-21T07:00:00", SEVEN),
        ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC)),
        ('"2026-11-21"', datetime(2026, 11, 21, tzinfo=UTC)),
    ],
)
def test_load_moments_of_plugin_and_iso(load, written: str, expected: datetime) -> None:
    """Moments are read in the plugin's form and in ISO 8601, as UTC if they name no zone."""
    read = load(pipeline(first_time_bucket=written)).pipeline("orders")
    assert read.first_time_bucket == expected
    assert read.start_ticks("order") == from_datetime(expected)


def test_start_ticks_never_before_first_bucket(load) -> None:
    """Tags start where start_from says, but never before the first time bucket."""
    read = load(pipeline(start_from='{ order = "2026-12-01T00:00:00Z", billing = "2020-01-01" }')).pipeline(
        "orders"
    )
    assert read.start_ticks("order") == from_datetime(datetime(2026, 12, 1, tzinfo=UTC))
    assert read.start_ticks("billing") == from_datetime(SEVEN)
    # The plugin's readers begin with the whole bucket in which first_time_bucket lies.
    within = load(pipeline(first_time_bucket='"20261121T07:25"', bucket_size='"Hour"')).pipeline("orders")
    assert within.start_ticks("order") == from_datetime(SEVEN)


def test_load_relative_paths_from_files_folder(load, tmp_path: Path) -> None:
    """Relative paths count from the folder of the configuration file."""
    topic = (
        '[pipelines.t]\nkind = "topic"\ntopics = ["t"]\ndestination = "t"\nformat = '
        '"avro"\nschema_files = { 1 = "event.avsc" }\n'
    )
    stores = "".join(
        f'[{name}]\ntls_ca_file = "{name}.pem"\n' for name in ("cassandra", "clickhouse", "kafka")
    )
    settings = load('[storage]\nroot = "data"\n[spark]\njars = "jars"\n' + stores + topic)
    assert settings.storage.root == str(tmp_path / "data")
    assert settings.spark.jars == tmp_path / "jars"
    for name in ("cassandra", "clickhouse", "kafka"):
        assert getattr(settings, name).tls_ca_file == tmp_path / f"{name}.pem"
    assert settings.topic("t").schema_files == {"1": tmp_path / "event.avsc"}
    assert load('[kafka]\ntls_ca_file = "/etc/kafka.pem"\n').kafka.tls_ca_file == Path("/etc/kafka.pem")


def test_a_url_stays_a_url(load) -> None:
    assert load('[storage]\nroot = "s3a://bucket/tagmill"\n').storage.root == "s3a://bucket/tagmill"


def test_the_environment_overrides_the_file_key_by_key(load) -> None:
    settings = load(
        '[cassandra]\nport = 9043\nhosts = ["a"]\n' + pipeline(),
        CASSANDRA__PORT="9999",
        CLICKHOUSE__HOST="ch",
        PIPELINES__ORDERS__BATCH_ROWS="7",
    )
    assert (settings.cassandra.port, settings.cassandra.hosts, settings.clickhouse.host) == (
        9999,
        ["a"],
        "ch",
    )
    assert (settings.pipeline("orders").batch_rows, settings.pipeline("orders").keyspace) == (7, "orders")


def test_secrets_come_from_the_environment_and_never_show(load) -> None:
    settings = load(pipeline(), CASSANDRA__USERNAME="reader", CASSANDRA__PASSWORD="hunter2")  # noqa: S106
    assert (
        settings.cassandra.password is not None
        and settings.cassandra.password.get_secret_value() == "hunter2"
    )
    assert "hunter2" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_secret_in_file_is_read(load, tmp_path: Path) -> None:
    """A variable names the file; its last line break is none of the secret. The secret itself wins."""
    file = tmp_path / "password"
    file.write_text("gé heim\n")
    settings = load(pipeline(), CASSANDRA__PASSWORD_FILE=str(file), KAFKA__USERNAME_FILE=str(file))
    assert settings.cassandra.password.get_secret_value() == "gé heim"
    assert settings.kafka.username == "gé heim"
    both = {"CASSANDRA__PASSWORD_FILE": str(file), "CASSANDRA__PASSWORD": "other"}
    assert load(pipeline(), **both).cassandra.password.get_secret_value() == "other"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"\xff\xfe", "not a text"), (b"x" * 70_000, "larger than a secret")],
    ids=["missing", "no text", "large"],
)
def test_secret_file_unreadable_is_named(load, tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        load(pipeline(), CLICKHOUSE__PASSWORD_FILE=str(file))
    assert "TAGMILL_CLICKHOUSE__PASSWORD_FILE" in str(refused.value) and reason in str(refused.value)


def test_the_file_is_found_by_the_environment(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(pipeline())
    monkeypatch.setenv("TAGMILL_CONFIG", str(tmp_path / "tagmill.toml"))
    assert list(Settings.load().pipelines) == ["orders"]


def test_replication_defaults_to_one_copy_and_takes_datacenters(load) -> None:
    assert load("").cassandra.replication.options() == {"class": "SimpleStrategy", "replication_factor": "1"}
    text = '[cassandra]\nreplication = { class = "NetworkTopologyStrategy", eu = 3, us = 2 }\n'
    assert load(text).cassandra.replication.options() == {
        "class": "NetworkTopologyStrategy",
        "eu": "3",
        "us": "2",
    }


def test_other_readers_empty_differs_from_unset(load) -> None:
    """Stating that there are no other readers differs from stating nothing."""
    stated = pipeline() + "[pipelines.orders.cleanup]\nother_readers = []\n"
    assert load(stated).pipeline("orders").cleanup.other_readers == []
    assert load(pipeline()).pipeline("orders").cleanup.other_readers is None
    assert load(pipeline()).pipeline("orders").cleanup.enabled is False


# -- mistakes, one line each


KAFKA_JOURNAL = '[pipelines.j]\nkind = "kafka_journal"\nkeyspace = "j"\ntopics = ["t"]\n'


def topic(keys: str) -> str:
    return f'[pipelines.t]\nkind = "topic"\ntopics = ["t"]\nformat = "json"\ndestination = "d"\n{keys}'


def topic_with_columns(*names: str) -> str:
    return topic("".join(f'[[pipelines.t.columns]]\nname = "{name}"\n' for name in names))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[kafcka]\nport = 1\n", "kafcka: unknown key. Did you mean kafka?"),
        ("[kafka]\nport = 1\n", "kafka.port: unknown key"),
        (
            '[kafka]\npassword = "p"\n',
            "kafka.password doesn't belong in the file; set TAGMILL_KAFKA__PASSWORD",
        ),
        (pipeline(kind='["topic"]'), "pipelines.orders.kind: ['topic'] is none of tag_views"),
        (pipeline(kind='"views"'), "pipelines.orders.kind: 'views' is none of tag_views, kafka_journal"),
        ('[pipelines.j]\nkind = "kafka_journal"\nkeyspace = "j"\n', "pipelines.j: topics: name at least one"),
        (
            '[pipelines.j]\nkind = "kafka_journal"\nkeyspace = "j"\ntopics = ["t"]\ntags = []\n',
            "pipelines.j.tags: unknown key",
        ),
        (
            '[pipelines.j]\nkind = "kafka_journal"\nkeyspace = "j"\ntopics = ["t"]\nsegment_size = 2147483648\n',
            "pipelines.j.segment_size: Input should be less than or equal to 2147483647",
        ),
        (
            pipeline(cleanup="{ application_ttl_seconds = 630720001 }"),
            "pipelines.orders.cleanup.application_ttl_seconds: Input should be less than or equal to 630720000",
        ),
        (
            '[kafka_journals.j]\nkeyspace = "j"\n',
            "kafka_journals: unknown key; a pipeline is [pipelines.NAME]",
        ),
        ("[cassandra]\nprot = 1\n", "cassandra.prot: unknown key. Did you mean port?"),
        ("[airflow]\nowners = 1\n", "airflow.owners: unknown key. Did you mean owner?"),
        (
            topic_with_columns("a") + 'paths = "a"\n',
            "pipelines.t.columns.0.paths: unknown key. Did you mean path?",
        ),
        (pipeline(kind='"kafka_jurnal"'), "kafka_journal_events, topic. Did you mean kafka_journal?"),
        (pipeline(tagz='["a"]'), "pipelines.orders.tagz: unknown key. Did you mean tags?"),
        (
            pipeline() + "[pipelines.orders.quality]\nshare = 1\n",
            "pipelines.orders.quality.share: unknown key",
        ),
        ("[cassandra]\nport = 0\n", "cassandra.port: "),
        ('[cassandra]\nread_consistency = "MOST"\n', "cassandra.read_consistency: "),
        ("cassandra = 5\n", "cassandra: "),
        ("pipelines = 5\n", "pipelines: "),
        (pipeline(bucket_size='"Week"'), "pipelines.orders.bucket_size: "),
        (pipeline(tags='["a", "b", "a"]'), "pipelines.orders: tags: a tag is named twice"),
        (pipeline(tags='["a", ""]'), "pipelines.orders.tags.1: "),
        (pipeline(tags="[]"), "pipelines.orders.tags: "),
        (pipeline(start_from='{ refund = "2026-01-01" }'), "start_from: not among the tags: refund"),
        (pipeline(first_time_bucket='"soon"'), "pipelines.orders.first_time_bucket: "),
        (pipeline(first_time_bucket='"20261321T07:00"'), "pipelines.orders.first_time_bucket: "),
        (pipeline(first_time_bucket="20261121"), "pipelines.orders.first_time_bucket: a number is no moment"),
        (pipeline(start_from="{ order = 1795518000000 }"), "a number is no moment; write it as 2026-11-21"),
        (pipeline(retention_days="999999"), "pipelines.orders.retention_days: at most 36525 is possible"),
        (
            pipeline(gap_timeout_seconds="1e12"),
            "pipelines.orders.gap_timeout_seconds: at most 3155760000 is possible",
        ),
        (
            pipeline(batch_rows=str(10**20)),
            "pipelines.orders.batch_rows: at most 9223372036854775807 is possible",
        ),
        (pipeline(keyspace='"x; DROP"'), "pipelines.orders.keyspace: 'x; DROP' is no identifier"),
        (pipeline(name='"or-ders"'), "'or-ders' is no identifier"),
        (pipeline(destination=f'"{"d" * 42}"'), "destination: too long for what stands beside it"),
        (
            pipeline(eventual_consistency_delay_seconds="-1"),
            "pipelines.orders.eventual_consistency_delay_seconds: ",
        ),
        (pipeline(look_back_seconds="inf"), "pipelines.orders.look_back_seconds: "),
        *(
            (
                pipeline() + pipeline(name="more", destination=f'"orders_{beside}"'),
                f"pipelines.more.destination: orders_{beside} belongs to the destination of orders",
            )
            for beside in ("events", "voided", "batches", "twice")
        ),
        (
            pipeline() + pipeline(name="more"),
            "pipelines.more.destination: orders is the destination of orders; each pipeline has its own",
        ),
        (
            pipeline()
            + '[pipelines.t]\nkind = "topic"\ntopics = ["t"]\nformat = "json"\ndestination = "orders"\n',
            "pipelines.t.destination: orders is the destination of orders; each pipeline has its own",
        ),
        (
            pipeline(destination='"carts_batches"')
            + '[pipelines.j]\nkind = "kafka_journal_events"\nkeyspace = "j"\ndestination = "carts"\n',
            "pipelines.orders.destination: carts_batches belongs to the destination of j",
        ),
        (
            pipeline() + "[pipelines.orders.cleanup]\napplication_ttl_seconds = 5\n",
            "pipelines.orders: cleanup.application_ttl_seconds: a TTL shorter than the delay (5 s",
        ),
        (
            pipeline(long_look_back_seconds="86400") + "[pipelines.orders.cleanup]\nolder_than_days = 1\n",
            "pipelines.orders: cleanup.older_than_days: a TTL shorter than the delay and "
            "long_look_back_seconds together",
        ),
        (
            pipeline() + "[pipelines.orders.cleanup]\nolder_than_days = 0\n",
            "pipelines.orders.cleanup.older_than_days: ",
        ),
        (
            pipeline() + '[[pipelines.orders.cleanup.other_readers]]\nname = "mail"\n',
            "pipelines.orders.cleanup.other_readers.0: reader mail: say either read_to or offset_store",
        ),
        (
            pipeline()
            + '[[pipelines.orders.cleanup.other_readers]]\nname = "mail"\nread_to = "2026-01-01"\ntags = '
            '["oder"]\n',
            "pipelines.orders: cleanup.other_readers: mail: not among the tags: oder",
        ),
        (
            pipeline()
            + '[[pipelines.orders.cleanup.other_readers]]\nname = "mail"\noffset_store = { keyspace = '
            '"p" }\n',
            "pipelines.orders.cleanup.other_readers.0.offset_store.projection_name: ",
        ),
        (topic_with_columns("kind"), "columns: kind is there twice, or belongs to Tagmill"),
        (topic_with_columns("row_checksum"), "columns: row_checksum is there twice"),
        (
            topic_with_columns("Offset", "Price", "price", "size"),
            "columns: Offset, Price, price is there twice",
        ),
        (pipeline(schedule='"61 * * * *"'), "pipelines.orders.schedule: '61 * * * *' is neither a cron"),
        (pipeline(schedule='"0 0 31 2 *"'), "pipelines.orders.schedule: '0 0 31 2 *' never comes"),
        (pipeline(audit_schedule='"@foo"'), "pipelines.orders.audit_schedule: '@foo' is neither a cron"),
        (pipeline(cleanup='{ schedule = "* * *" }'), "pipelines.orders.cleanup.schedule: '* * *' is neither"),
        (KAFKA_JOURNAL + 'schedule = ""\n', "pipelines.j.schedule: '' is neither a cron"),
        (KAFKA_JOURNAL + 'purge_schedule = "daily"\n', "pipelines.j.purge_schedule: 'daily' is neither"),
        (topic('schedule = "H * * * *"\n'), "pipelines.t.schedule: 'H * * * *' is neither"),
        (topic('cleanup_schedule = "x"\n'), "pipelines.t.cleanup_schedule: 'x' is neither"),
        (topic('expire_schedule = "x"\n'), "pipelines.t.expire_schedule: 'x' is neither"),
        ("[cassandra\n", "can't be read as TOML"),
        ('[cassandra]\nhosts = ["127.0.0.1:9042"]\n', "is no host: the key port has the port"),
        ('[cassandra]\nhosts = [""]\n', "cassandra.hosts"),
        ('[clickhouse]\nhost = ""\n', "clickhouse.host: '' is no host"),
        ('[clickhouse]\nhost = "http://clickhouse"\n', "is no host: give its name or address alone"),
        ('[spark]\ndriver_memory = "lots"\n', "spark.driver_memory"),
        ('[spark]\ndriver_memory = "2gb"\n', "spark.driver_memory"),
        ('[storage]\nroot = ""\n', "storage.root"),
        (pipeline("all"), "pipelines.all: `all` means all pipelines"),
        (f"port = {'9' * 5000}\n", "can't be read as TOML: Exceeds the limit (4300 digits)"),
        (f"port = {'[' * 3000}\n", "can't be read as TOML: maximum recursion depth exceeded"),
        ('[storage]\nroot = "http://[::1"\n', "storage.root: Invalid IPv6 URL"),
        ('[storage]\nroot = "a\\u0000b"\n', "storage.root: a folder's name has no NUL"),
        ('[cassandra]\ntls_ca_file = "a\\u0000b"\n', "cassandra.tls_ca_file: a file's name has no NUL"),
        (topic('schema_files = { 1 = "a\\u0000b" }\n'), "pipelines.t.schema_files: a file's name has no NUL"),
        ('[airflow]\ninput_dir = "a\\u0000b"\n', "airflow.input_dir: a file's name has no NUL"),
    ],
)
def test_load_mistake_is_line_naming_key(load, text: str, named: str) -> None:
    """Report a mistake in one line that names the key."""
    assert named in mistake(load, text)


def test_all_mistakes_are_named_at_once(load) -> None:
    text = mistake(load, "[cassandra]\nprot = 1\nport = 70000\n")
    assert "cassandra.prot" in text and "cassandra.port" in text


@pytest.mark.parametrize("section", ["cassandra", "clickhouse"])
@pytest.mark.parametrize("key", ["username", "password"])
def test_load_secret_in_file_is_refused(load, section: str, key: str) -> None:
    """Refuse a secret in the file, name its environment variable, and do not repeat the secret."""
    text = mistake(load, f'[{section}]\n{key} = "hunter2"\n')
    assert f"{section}.{key}" in text and f"TAGMILL_{section.upper()}__{key.upper()}" in text
    assert "hunter2" not in text


def test_an_unknown_key_in_the_environment_is_named(load) -> None:
    assert "cassandra.prot: unknown key" in mistake(load, "", CASSANDRA__PROT="1")


def test_load_unfit_environment_value_is_named(load) -> None:
    """Name the key of a value in the environment that does not fit."""
    assert "cassandra.port: " in mistake(load, "", CASSANDRA__PORT="many")


def test_table_in_environment_is_no_list(load) -> None:
    assert "topics: not a table" in mistake(load, pipeline(), TOPICS="[1]")


def test_a_list_in_the_environment_is_json(load) -> None:
    assert load("", CASSANDRA__HOSTS='["a", "b"]').cassandra.hosts == ["a", "b"]
    text = mistake(load, "", CASSANDRA__HOSTS="a,b")
    assert "environment: TAGMILL_CASSANDRA__HOSTS: sections and lists are given as JSON" in text


def test_unknown_section_in_environment_is_named(load) -> None:
    text = mistake(load, "", CASANDRA__PORT="1")
    assert "TAGMILL_CASANDRA__PORT: there is no section casandra" in text and "mean cassandra?" in text


def test_addresses_are_hosts(load) -> None:
    text = '[cassandra]\nhosts = ["::1", "10.0.0.1", "cassandra-1.example"]\n'
    assert load(text).cassandra.hosts == ["::1", "10.0.0.1", "cassandra-1.example"]


def test_byte_order_mark_is_read_over(load, tmp_path: Path) -> None:
    load(pipeline())
    file = tmp_path / "tagmill.toml"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert list(Settings.load(file).pipelines) == ["orders"]
    file.write_bytes("# \u00fc".encode("latin-1"))
    with pytest.raises(ConfigurationError, match="is no text in UTF-8 .byte 2."):
        Settings.load(file)


def test_a_missing_file_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="there is no such configuration file; give --config or set TAGMILL_CONFIG"
    ):
        Settings.load(tmp_path / "none.toml")


def test_load_folder_is_refused(tmp_path: Path) -> None:
    """Refuse a folder in place of the file in one line."""
    with pytest.raises(ConfigurationError, match="can't be read"):
        Settings.load(tmp_path)


def test_unknown_pipeline_lists_configured_ones(load) -> None:
    """Name the configured pipelines if another one is asked for."""
    with pytest.raises(
        ConfigurationError, match="pipeline 'refunds' is not in the configuration .there: orders"
    ):
        load(pipeline()).pipeline("refunds")


def test_unknown_pipeline_is_told_the_nearest(load) -> None:
    """Name the configured pipeline that a wrong name resembles, and none where there is no such."""
    with pytest.raises(ConfigurationError, match=r"Did you mean orders\?$"):
        load(pipeline()).pipeline("Order")
    with pytest.raises(ConfigurationError, match=r"\(there: orders\)$"):
        load(pipeline()).pipeline("refunds")


def test_a_journal_is_built_by_one_pipeline(load) -> None:
    first, second = (
        pipeline(views='"tagmill"'),
        pipeline("billing", destination='"billing"', views='"tagmill"'),
    )
    assert (
        "pipelines.billing.views: keyspace orders is built by pipeline orders, for all its tags"
        in mistake(load, first + second)
    )
    load(first + second.replace('"tagmill"', '"application"'))
    load(first + second.replace('"orders"', '"another"'))


def test_kafka_journal_is_own_kind(load) -> None:
    """Kafka journals are pipelines of their own kind; asking for one as another kind is refused."""
    text = (
        pipeline()
        + '[pipelines.carts]\nkind = "kafka_journal"\nkeyspace = "carts"\ntopic_prefixes = ["journal-"]\n'
    )
    settings = load(text, KAFKA__PASSWORD="s3cr3t", PIPELINES__CARTS__SEGMENT_SIZE="500")
    assert list(settings.pipelines) == ["orders"] and list(settings.kafka_journals) == ["carts"]
    assert settings.kafka_journal("carts").segment_size == 500
    assert "s3cr3t" not in repr(settings)
    for wrong, name in ((settings.pipeline, "carts"), (settings.kafka_journal, "orders")):
        with pytest.raises(ConfigurationError, match=f"pipeline '{name}' is of kind"):
            wrong(name)
    with pytest.raises(ConfigurationError, match=r"'nope' is not in the configuration \(there: carts\)"):
        settings.kafka_journal("nope")


@pytest.mark.parametrize(
    ("word", "warnings"),
    [
        ("kafka_journal_events", []),
        (
            "journal",
            ['pipelines.a, pipelines.b: kind = "journal" is deprecated; write kind = "kafka_journal_events"'],
        ),
    ],
)
def test_former_kind_is_accepted_with_warning(load, caplog, word: str, warnings: list[str]) -> None:
    """A kind under its former word is the kind of today, and one line of each load names the new word."""
    text = "".join(
        f'[pipelines.{name}]\nkind = "{word}"\nkeyspace = "carts"\ndestination = "{name}"\n' for name in "ab"
    )
    settings = load(text)
    assert {name: settings.stream(name).kind for name in "ab"} == dict.fromkeys("ab", "kafka_journal_events")
    assert [record.getMessage() for record in caplog.records] == warnings


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ('topics = ["a", "b"]', 'topics = ["b"]', "b"),
        ('topics = ["journal-a"]', 'topic_prefixes = ["journal-"]', "journal-a"),
        ('topic_prefixes = ["journal-", "x"]', 'topic_prefixes = ["journal-eu-"]', "journal-eu-"),
        ('topic_prefixes = ["eu-"]', 'topic_prefixes = ["us-"]', None),
        ('topics = ["a"]', 'topics = ["b"]\ntopic_prefixes = ["ab"]', None),
    ],
)
def test_topic_has_one_pipeline_per_keyspace(load, one: str, other: str, shared: str | None) -> None:
    """Topics, named or by prefix, are replicated to a keyspace by one pipeline only."""
    first, second = (
        f'[pipelines.{n}]\nkind = "kafka_journal"\nkeyspace = "j"\n{topics}\n'
        for n, topics in (("m", one), ("n", other))
    )
    if shared:
        assert f"pipelines.n.topics: {shared} is replicated to keyspace j by pipeline m already" in mistake(
            load, first + second
        )
    else:
        load(first + second)
    load(first + second.replace('"j"', '"k"'))
