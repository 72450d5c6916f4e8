"""Compare the Kafka Journal that a pipeline delivers with the one that it first read.

Tables that were created again, and topics that were replicated from their first record again, count their
offsets from 0: events at offsets that were read before would never be delivered.
"""

from functools import cached_property

from tagmill.config.kafka import KafkaJournalEventsSettings
from tagmill.kafka_journal.tables import KafkaJournalTables
from tagmill.ledger.journal_tables import JournalTableIds
from tagmill.ledger.same_tables import accepted, another_life, created_again
from tagmill.ledger.topic_ids import TopicIds
from tagmill.runs.workspace import Workspace

READ = ("journal", "metajournal", "pointer2")


class SameJournal:
    """The tables and topics of the Kafka Journal of one pipeline, as the pipeline knows them.

    A topic is known by the moment at which its replication began, which the ledger keeps in place of an id
    from Kafka. Topics are read once, for one comparison.
    """

    def __init__(self, workspace: Workspace) -> None:
        chosen = workspace.stream
        assert isinstance(chosen, KafkaJournalEventsSettings)
        self.name, self.journal, self.topics = workspace.name, chosen.keyspace, chosen.topics
        self.tables = KafkaJournalTables(workspace.cassandra, chosen.keyspace)
        self.table_ids = JournalTableIds(workspace.cassandra, workspace.ledger_keyspace, chosen.keyspace)
        self.topic_ids = workspace.store(TopicIds)

    def require(self, untouched: str = "Nothing was planned") -> None:
        """Raise GuardRefused if the journal may be another one; note what is read for the first time.

        `untouched` says in the message what was left undone.
        """
        if changes := [*self.changed_tables(), *self.changed_topics().values()]:
            raise another_life(self.name, changes[0], untouched, of="offsets")
        self.table_ids.note(self.name, READ)
        self.topic_ids.write({topic: at for topic, at in self._begun.items() if topic not in self._known})

    def changed_tables(self) -> list[str]:
        """Return a text about the tables that were created again since the pipeline first read them; none if
        none was.
        """
        changed = self.table_ids.changed(self.name, READ)
        return [created_again(changed, self.journal)] if changed else []

    def changed_topics(self) -> dict[str, str]:
        """Return by topic a text about each whose replication began again since it was first read."""
        return {
            topic: f"topic {topic} of journal {self.journal} was replicated again from its beginning"
            for topic, at in self._begun.items()
            if at > self._known.get(topic, at)
        }

    def accept(self) -> str:
        """Note that the present tables and topics hold the events that were delivered; return a sentence that
        says so.
        """
        self.table_ids.accept(self.name, READ)
        self.topic_ids.write(self._begun)
        return accepted(self.name, self.journal)

    @cached_property
    def _known(self) -> dict[str, str]:
        return self.topic_ids.read()

    @cached_property
    def _begun(self) -> dict[str, str]:
        if not self.tables.there():
            return {}
        begun = self.tables.begun()
        return {topic: at for topic, at in begun.items() if not self.topics or topic in self.topics}


def require_same_journal(workspace: Workspace, untouched: str = "Nothing was planned") -> None:
    """Raise GuardRefused if a pipeline's Kafka Journal may be another one; a pipeline of topics has none.

    `untouched` says in the message what was left undone.
    """
    if isinstance(workspace.stream, KafkaJournalEventsSettings):
        SameJournal(workspace).require(untouched)


def other_life(workspace: Workspace) -> tuple[str, dict[str, str]]:
    """Return why no record of a pipeline's Kafka Journal may be one that was read, or an empty text, and why
    none of a topic may be, by topic.
    """
    if not isinstance(workspace.stream, KafkaJournalEventsSettings):
        return "", {}
    journal = SameJournal(workspace)
    said = "since its events were delivered: its offsets may be of another life"
    of_all = [f"{change} {said}" for change in journal.changed_tables()]
    return "".join(of_all), {topic: f"{change} {said}" for topic, change in journal.changed_topics().items()}
