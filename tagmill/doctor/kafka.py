"""Check Kafka: login, topics and the rights on them."""

from urllib.parse import urlsplit

from tagmill.config.kafka import KafkaJournalSettings, KafkaSettings, TopicSettings
from tagmill.doctor import network
from tagmill.doctor.model import Checked, Findings, Scope, fine, not_checked, said_of, warning, wrong
from tagmill.errors import PropertyRefused, TagmillError
from tagmill.kafka.client import Kafka

# Longest wait for an answer in seconds: a wrong login is answered by silence.
PATIENCE_SECONDS = 10
VARIABLES = "TAGMILL_KAFKA__USERNAME and TAGMILL_KAFKA__PASSWORD in the environment"
LOGIN_CURE = f"correct kafka.sasl_mechanism, and {VARIABLES}"
OAUTH_CURE = f"correct kafka.oauth_token_url, kafka.oauth_scope, and {VARIABLES}"
READING = ("READ", "DESCRIBE")


def examine(scope: Scope) -> Checked[None]:
    """Check the way to Kafka and what each pipeline reads there."""
    configured = scope.settings.kafka
    seconds = min(configured.request_timeout_seconds, PATIENCE_SECONDS)
    way = network.way_to_kafka(configured, seconds)
    topics: dict[str, int] | None = None
    if not (yield from network.reach(way)):
        yield not_checked("kafka login", "no connection to Kafka")
    elif half := list(network.half_login(way, configured.username, configured.password)):
        yield from half
    else:
        yield from _token_endpoint(configured)
        try:
            kafka = Kafka(configured.model_copy(update={"request_timeout_seconds": seconds}))
            topics = kafka.topics()
        except TagmillError as error:
            yield from network.refused_login(way, error, _cure(configured, error))
        else:
            who = f"as {configured.username}" if configured.sasl_mechanism else "without user name"
            yield fine("kafka login", f"{who}; {len(topics)} topics")
            for name, pipeline in scope.reading_kafka.items():
                yield from _topics(kafka, name, pipeline, topics)
    if topics is None:
        for name in scope.reading_kafka:
            for check in ("topics", "topic rights"):
                yield not_checked(f"pipeline {name}: {check}", "no connection to Kafka")


def _token_endpoint(configured: KafkaSettings) -> Findings:
    url = urlsplit(configured.oauth_token_url or "")
    if url.scheme == "http" and not network.is_local(url.hostname or ""):
        said = f"the client's secret travels in the clear to {configured.oauth_token_url}"
        yield warning("kafka token endpoint", said, "name it with https:// in kafka.oauth_token_url")


def _cure(configured: KafkaSettings, error: TagmillError) -> str:
    if isinstance(error, PropertyRefused):
        return "correct kafka.properties"
    return OAUTH_CURE if configured.sasl_mechanism == "OAUTHBEARER" else LOGIN_CURE


def _topics(
    kafka: Kafka, name: str, configured: TopicSettings | KafkaJournalSettings, topics: dict[str, int]
) -> Findings:
    check, rights = f"pipeline {name}: topics", f"pipeline {name}: topic rights"
    prefixes = tuple(configured.topic_prefixes)
    read = sorted(topic for topic in topics if topic in configured.topics or topic.startswith(prefixes))
    if missing := [topic for topic in configured.topics if topic not in topics]:
        said = f"{kafka.where} has no topic {', '.join(missing)} that this user may describe"
        yield wrong(
            check, said, f"correct pipelines.{name}.topics, create the topic, or grant Describe on it"
        )
    elif not read:
        said = f"no topic begins with {' or '.join(prefixes)}"
        yield warning(check, said, f"correct pipelines.{name}.topic_prefixes, or grant Describe")
    else:
        yield fine(check, f"{len(read)} topics, {sum(topics[topic] for topic in read)} partitions")
    if not read:
        yield not_checked(rights, "there are no topics")
        return
    try:
        allowed = kafka.operations(read)
        kafka.spans((topic, number) for topic in read for number in range(topics[topic]))
    except TagmillError as error:
        yield wrong(rights, said_of(error), "grant Read and Describe on the topics")
        return
    lacking = {
        operation: [topic for topic in read if operation not in allowed[topic]]
        for operation in (*READING, "WRITE")
    }
    if unread := {operation: lacking[operation] for operation in READING if lacking[operation]}:
        said = "; ".join(f"no {operation} on {', '.join(named)}" for operation, named in unread.items())
        yield wrong(rights, f"the user has {said}", "grant Read and Describe on these topics (kafka-acls)")
    elif isinstance(configured, KafkaJournalSettings) and lacking["WRITE"]:
        said = f"no WRITE on {', '.join(lacking['WRITE'])}, which `kafka-journal purge-expired` needs"
        yield warning(rights, f"the user has {said}", "grant Write on these topics (kafka-acls)")
    else:
        yield fine(rights, ", ".join(READING))
