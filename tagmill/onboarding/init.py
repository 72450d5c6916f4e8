"""Make the configuration file of a cluster: ask the servers, propose, check the result, write it."""

import json
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tagmill.cassandra.client import Cassandra, contact
from tagmill.clickhouse.client import ClickHouse
from tagmill.config import json_schema
from tagmill.config.environment import SECURITY
from tagmill.config.settings import Settings
from tagmill.errors import ConfigurationError, DestinationDiffers, TagmillError
from tagmill.kafka.client import Kafka
from tagmill.onboarding import consistency
from tagmill.onboarding.draft import Draft, plain_name
from tagmill.onboarding.journal_layout import Layout
from tagmill.onboarding.journal_proposal import journal_draft
from tagmill.onboarding.journal_survey import keyspaces, replication_of, require_journal, survey
from tagmill.onboarding.questions import Ask, Question
from tagmill.onboarding.toml_file import SCHEMA_FILE, Section, render
from tagmill.onboarding.topic_proposal import kafka_journal_draft, kafka_journal_events_draft, topic_draft
from tagmill.onboarding.topic_survey import TopicSample, guess_format, sample

CASSANDRA_PORT, CLICKHOUSE_PORT = 9042, 8123
HEAD = (
    "Written by `tagmill init` from what the servers hold. `tagmill config show` tells where each value comes",
    "from, docs/configuration.md has every key. User names and passwords: TAGMILL_CASSANDRA__USERNAME,",
    "TAGMILL_CASSANDRA__PASSWORD, the same for CLICKHOUSE and KAFKA, or Airflow's connections.",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the operator says; None and empty: the servers or a question say it.

    Addresses are HOST[:PORT], several hosts with commas; ClickHouse's may end with /DATABASE.
    """

    output: Path
    cassandra: str | None = None
    keyspace: str | None = None
    username: str | None = None
    ledger_keyspace: str = "tagmill"
    clickhouse: str | None = None
    kafka: str | None = None
    topic: str | None = None
    tags: Sequence[str] = ()
    schema_files: Mapping[str, Path] = field(default_factory=dict)
    message_type: str | None = None
    unique_id: Sequence[str] = ()
    storage: str | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """The text of the file, and what to say about it."""

    text: str
    draft: Draft


def propose(wanted: Wanted, ask: Ask) -> Proposal:
    """Ask the servers and the operator, and return the file; nothing is written.

    Raises ConfigurationError, StoreUnavailable.
    """
    return _Init(wanted, ask).proposal()


def write(proposal: Proposal, output: Path, *, overwrite: bool) -> list[Path]:
    """Check the text and write it, and beside it the JSON Schema that it names; return the written files.

    A file that is overwritten keeps its mode, and a link to it stays. Raises ConfigurationError: the file exists
    (unless `overwrite`), or the folder can't be written to.
    """
    schema_file, written = output.parent / SCHEMA_FILE, list[Path]()
    target = output.resolve()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".tagmill-", suffix=".toml", dir=target.parent)
        draft = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(proposal.text)
            _must_load(draft, output)
            if overwrite and target.exists():
                draft.chmod(stat.S_IMODE(target.stat().st_mode))
                draft.replace(target)
            else:
                with output.open("x", encoding="utf-8") as file:
                    file.write(proposal.text)
        finally:
            draft.unlink(missing_ok=True)
        written.append(output)
        if not schema_file.exists() or json_schema.TITLE in schema_file.read_text("utf-8", "replace"):
            schema_file.write_text(json.dumps(json_schema.schema(), indent=1) + "\n", encoding="utf-8")
            written.append(schema_file)
        return written
    except FileExistsError:
        raise ConfigurationError(
            f"{output} exists. It was left as it is; give --output another file"
        ) from None
    except OSError as error:
        done = f"{output} was written" if written else "Nothing was written"
        raise ConfigurationError(
            f"{error.filename or output}: can't be written: {error.strerror}. {done}"
        ) from None


def _must_load(draft: Path, output: Path) -> None:
    """Raise ConfigurationError, about `output`, if a draft of it can't be loaded: an answer was wrong."""
    try:
        Settings.load(draft)
    except ConfigurationError as error:
        said = str(error).replace(str(draft), str(output))
        raise ConfigurationError(f"{said}. Nothing was written; give another answer or option") from None


class _Init:
    def __init__(self, wanted: Wanted, ask: Ask) -> None:
        self.wanted, self.ask, self.made = wanted, ask, Draft()
        self.content: dict[str, dict[str, Any]] = {}
        self.names: set[str] = set()

    def proposal(self) -> Proposal:
        cassandra = self._cassandra_section()
        with Cassandra(self.settings().cassandra) as session:
            kafka, records = self._kafka()
            of_journal = records is not None and guess_format(records.records).format == "journal"
            keyspace, layout = self._keyspace(session, records is not None, of_journal)
            self._replication(session, keyspace, cassandra)
            clickhouse = self._clickhouse_section()
            if layout and layout.is_journal:
                self._journal(session, keyspace, layout)
            elif layout and layout.kafka_journal and not of_journal:
                name = self._name(keyspace)
                self.made.extend(kafka_journal_events_draft(name, keyspace, self._destination(name)))
            if records is not None:
                self._topic(session, records, layout, of_journal=of_journal)
        common = [cassandra, clickhouse, *kafka, self._storage()]
        self.made.commands = ["schema apply", "doctor", *self.made.commands]
        return Proposal(render(HEAD, [*common, *self.made.sections]), self.made)

    def settings(self) -> Settings:
        """Return the settings of what is known so far; the environment wins, as in every later command."""
        return Settings.of(self.content, "command line")

    # -- servers

    def _cassandra_section(self) -> Section:
        text = self.wanted.cassandra or self.ask(
            Question("Cassandra, as HOST[:PORT]", f"127.0.0.1:{CASSANDRA_PORT}", option="--cassandra")
        )
        hosts, port = addresses(text, CASSANDRA_PORT, "--cassandra")
        keys: dict[str, Any] = {"hosts": hosts, "port": port, "ledger_keyspace": self.wanted.ledger_keyspace}
        if self.wanted.username:
            keys["username"] = self.wanted.username
        self.content["cassandra"] = keys
        found = contact(self.settings().cassandra)
        keys["local_datacenter"] = found.datacenter
        self.made.facts.append(
            f"Cassandra {found.release}, cluster {found.cluster}, datacenter {found.datacenter}"
        )
        section = Section("cassandra")
        settings = self.settings().cassandra
        section.add("hosts", settings.hosts, "Contact points; the driver finds the other nodes.")
        section.add("port", settings.port)
        section.add("local_datacenter", settings.local_datacenter, "The contact point's own.")
        section.add("ledger_keyspace", settings.ledger_keyspace, "Keyspace of Tagmill's own tables.")
        self._security(section, settings)
        return section

    def _replication(self, session: Cassandra, keyspace: str, section: Section) -> None:
        journal = replication_of(session, keyspace) if keyspace else None
        nodes: dict[str, int] = {}
        for host in session.cluster.metadata.all_hosts():
            nodes[host.datacenter] = nodes.get(host.datacenter, 0) + 1
        here = session.settings.local_datacenter
        proposed = consistency.for_ledger(journal, nodes, here)
        of_journal = f"; keyspace {keyspace} has {journal}" if journal else ""
        section.add("replication", proposed.options(), f"For the ledger's keyspace{of_journal}.")
        writes = "LOCAL_QUORUM"
        if consistency.must_ask(journal):
            writes = self.ask(
                Question(
                    f"Consistency that the application writes keyspace {keyspace} with ({journal})",
                    consistency.PLUGIN_DEFAULT,
                    tuple(consistency.OVERLAPPING),
                )
            )
        section.add(
            "read_consistency",
            consistency.reads_for(writes, journal, here),
            f"Overlaps the application's writes, if it writes at {writes} or above.",
        )
        self.made.facts.append(f"replication {journal or proposed}, ledger {proposed}")
        self.made.warnings += consistency.warnings(journal, here)
        self.made.not_told.append(f"consistency of the application's writes: {writes} was taken")

    def _clickhouse_section(self) -> Section:
        text = self.wanted.clickhouse or self.ask(
            Question(
                "ClickHouse, as HOST[:PORT][/DATABASE]", f"127.0.0.1:{CLICKHOUSE_PORT}", option="--clickhouse"
            )
        )
        address, _, database = text.partition("/")
        (host, *others), port = addresses(address, CLICKHOUSE_PORT, "--clickhouse")
        if others:
            raise ConfigurationError(f"--clickhouse {text}: one host is needed. Nothing was written")
        self.content["clickhouse"] = {"host": host, "port": port, "database": database or "default"}
        settings = self.settings().clickhouse
        section = Section("clickhouse")
        section.add("host", settings.host, "One server; of a cluster one replica, not a balancer.")
        section.add("port", settings.port, "Port of the HTTP interface.")
        section.add("database", settings.database)
        self._security(section, settings)
        try:
            with ClickHouse(settings) as clickhouse:
                ((version, clustered),) = clickhouse.rows(
                    "SELECT version(), (SELECT count() FROM system.clusters WHERE is_local = 0)"
                )
            self.made.facts.append(f"ClickHouse {version}, database {settings.database}")
            if clustered:
                self.made.not_told.append("clickhouse.cluster: name it if the table is to be replicated")
        except TagmillError as error:
            if self.wanted.clickhouse:
                raise
            self.made.not_told.append(f"ClickHouse was not asked: {error}")
        return section

    def _security(self, section: Section, settings: Any) -> None:
        """Add the keys of TLS and login that the environment sets; the file then holds without it."""
        for key in (*SECURITY, "properties"):
            value = getattr(settings, key, None)
            if isinstance(value, Path):
                section.add(key, str(value.resolve()))
            elif value:
                section.add(key, value if isinstance(value, bool | dict) else str(value))

    # -- pipelines

    def _keyspace(self, session: Cassandra, with_topic: bool, of_journal: bool) -> tuple[str, Layout | None]:
        """Return the journal's keyspace and its tables; an empty name and None if only a topic is wanted.

        With a topic of a Kafka Journal, the keyspace need not exist: it is the one to replicate to.
        """
        name = self.wanted.keyspace
        if name is None and with_topic:
            return "", None
        known = keyspaces(session)
        if name is not None:
            return name, known.get(name) if of_journal else require_journal(session, name)
        if not known:
            raise ConfigurationError(
                f"{session.where} has no keyspace with a journal. Nothing was written. Give --keyspace, or "
                "--kafka and --topic"
            )
        name = min(known)
        if len(known) > 1:
            name = self.ask(
                Question("Keyspace of the journal", None, tuple(sorted(known)), option="--keyspace")
            )
        return name, require_journal(session, name)

    def _journal(self, session: Cassandra, keyspace: str, layout: Layout) -> None:
        views = layout.tables.get("view", ())
        view = views[0] if views else None
        if len(views) > 1:
            text = f"Table of tag views in keyspace {keyspace}"
            view = self.ask(Question(text, views[0], tuple(views)))
        known, name = survey(session, keyspace, layout, view), self._name(keyspace)
        self.made.extend(journal_draft(known, name, self._destination(name), self.ask, self.wanted.tags))

    def _kafka(self) -> tuple[list[Section], TopicSample | None]:
        """Return the section of Kafka and a sample of the wanted topic; nothing if no topic is wanted."""
        if not (self.wanted.topic or self.wanted.kafka):
            return [], None
        text = self.wanted.kafka or self.ask(
            Question("Kafka, as HOST:PORT[,HOST:PORT]", "127.0.0.1:9092", option="--kafka")
        )
        servers = [server.strip() for server in text.split(",") if server.strip()]
        self.content["kafka"] = {"bootstrap_servers": servers}
        settings = self.settings().kafka
        section = Section("kafka")
        section.add("bootstrap_servers", settings.bootstrap_servers)
        self._security(section, settings)
        with Kafka(settings) as kafka:
            topic = self.wanted.topic
            if topic is None:
                topic = self.ask(Question("Topic", None, tuple(sorted(kafka.topics())), option="--topic"))
            return [section], sample(kafka, topic)

    def _topic(
        self, session: Cassandra, records: TopicSample, layout: Layout | None, *, of_journal: bool
    ) -> None:
        name = self._name(records.topic)
        if of_journal:
            self._kafka_journal(session, records, name, layout)
            return
        self.made.extend(
            topic_draft(
                records,
                name,
                self._destination(name),
                self.ask,
                schema_files=self.wanted.schema_files,
                message_type=self.wanted.message_type,
                unique_id=self.wanted.unique_id,
            )
        )

    def _kafka_journal(
        self, session: Cassandra, records: TopicSample, name: str, layout: Layout | None
    ) -> None:
        """Add the pipelines of a Kafka Journal; a keyspace that has its tables is not replicated to again."""
        here = {one for one, tables in keyspaces(session).items() if tables.kafka_journal}
        keyspace = self.wanted.keyspace if not (layout and layout.is_journal) else None
        keyspace = keyspace or self.ask(
            Question(f"Keyspace of the Kafka Journal of topic {records.topic}", min(here, default=name))
        )
        destination = self._destination(name)
        self.made.extend(
            kafka_journal_draft(records, name, keyspace, destination, replicated=keyspace in here)
        )

    def _name(self, source: str) -> str:
        name = plain_name(source, self.names)
        self.names.add(name)
        return name

    def _destination(self, name: str) -> str:
        """Return a table of ClickHouse with a pipeline's name; one that others use gets another name."""
        taken: set[str] = set()
        try:
            with ClickHouse(self.settings().clickhouse) as clickhouse:
                rows = clickhouse.rows("SELECT name FROM system.tables WHERE database = currentDatabase()")
                taken = {table for (table,) in rows}
                if name in taken:
                    clickhouse.check_destination(name)
                    self.made.warnings.append(
                        f"table {name} exists in ClickHouse with Tagmill's columns: if another pipeline "
                        "delivers to it, name another destination"
                    )
                    return name
        except DestinationDiffers:
            self.made.warnings.append(f"table {name} exists in ClickHouse and is not Tagmill's")
        except TagmillError:
            return name
        return plain_name(name, taken)

    # -- this machine

    def _storage(self) -> Section:
        root = self.wanted.storage or self.ask(
            Question(
                "Folder or URL (s3a://, hdfs://) of plans, sealed batches and reports",
                "data",
                option="--storage",
            )
        )
        section = Section("storage")
        section.add("root", root, "A folder of this machine, unless Spark runs on others.")
        return section


def addresses(text: str, default_port: int, option: str) -> tuple[list[str], int]:
    """Split HOST[:PORT][,HOST[:PORT]] into hosts and their port; raises ConfigurationError.

    An IPv6 address with a port is in brackets.
    """
    hosts, ports = list[str](), set[int]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, port = part, ""
        if part.startswith("["):
            host, _, rest = part[1:].partition("]")
            port = rest.removeprefix(":")
        elif part.count(":") == 1:
            host, _, port = part.partition(":")
        if not host or (port and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535)):
            raise ConfigurationError(f"{option} {text}: {part!r} is no HOST[:PORT]. Nothing was written")
        hosts.append(host)
        ports.add(int(port) if port else default_port)
    if not hosts or len(ports) > 1:
        raise ConfigurationError(f"{option} {text}: give hosts with one port. Nothing was written")
    return hosts, ports.pop()
