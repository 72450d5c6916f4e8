"""Kafka: list topics and their offsets, read and write records, and raise errors as Tagmill's."""

import re
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from tagmill.config import tls
from tagmill.config.kafka import KafkaSettings
from tagmill.errors import (
    ConfigurationError,
    PropertyRefused,
    RecordsLost,
    StoreUnavailable,
    TagmillError,
)

# A topic and the number of its partition.
Partition = tuple[str, int]
# Headers of a record in their order; a name may occur twice, and the one of NAME_NOT_UTF8 is None.
Headers = list[tuple[str | None, bytes | None]]
# What stands for all headers of a record if a name of them is not UTF-8: the client returns none of these.
NAME_NOT_UTF8: Headers = [(None, None)]
# The client returns a list with null pointers together with such a name's error. Only a call through C is certain
# to notice the error: Python's own calls, once they are hot, skip the check, and the list then ends the process.
_headers = methodcaller("headers")
LOGIN_REFUSED = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
# What librdkafka says of a token endpoint that can't be asked, in contrast to one that refuses.
NO_TOKEN_YET = re.compile(r"(?i)resolve host|connect|timed? ?out|HTTP error 5\d\d|\b50\d\b")
# Errors of requests that had no connection, for example because the login fails.
SILENT = {
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
}
REFUSED = {*LOGIN_REFUSED, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._SSL}
# Errors of a partition whose leader changes or that was just created; they pass in seconds.
LEADERLESS = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
UNKNOWN = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_EXCEPTION,
}
# Errors of a read that begins in front of the first record that is left.
GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
# Records that one poll returns at most, and seconds that it waits for so many; records that are fetched ahead.
POLLED, POLL_SECONDS, FETCHED_AHEAD = 1000, 0.1, 20_000
# A record's timestamp is what its producer says. One after LATEST (such as microseconds taken for
# milliseconds) counts as LATEST, one before EARLIEST (a record without a timestamp has -1) as EARLIEST.
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
LATEST_MS = (LATEST - EARLIEST) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a topic's partition: from `first` (inclusive) to `end` (exclusive), of which some may hold
    no record.
    """

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """One record."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: Headers


class _LoginError:
    """Remembers why a login fails: librdkafka tells a callback, and goes on trying.

    It is no part of Kafka, whose clients would then hold it and live on after its end.
    """

    said = ""

    def note(self, error: KafkaError) -> None:
        """Remember an error if it is one of the login."""
        if error.code() in LOGIN_REFUSED:
            self.said = " ".join(error.str().split())[:300]


class Kafka:
    """A client of one Kafka cluster, to be used in `with`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.where = f"Kafka at {', '.join(settings.bootstrap_servers)}"
        self._login_error = _LoginError()
        self._admin = self._client(AdminClient)

    def __enter__(self) -> "Kafka":
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.poll(0)

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic; Kafka's own topics (__…) are left out."""
        try:
            found = self._admin.list_topics(timeout=self.settings.request_timeout_seconds)
        except KafkaException as error:
            raise self._explained(error) from None
        self._answered()
        return {
            name: len(topic.partitions) for name, topic in found.topics.items() if not name.startswith("__")
        }

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the id that Kafka gave each topic at its creation; topics of brokers before 2.8 have none
        and are left out.
        """
        if not topics:
            return {}
        seconds = self.settings.request_timeout_seconds
        try:
            asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=seconds)
            found = {name: answer.result(seconds).topic_id for name, answer in asked.items()}
        except KafkaException as error:
            raise self._explained(error) from None
        except TimeoutError:
            raise self._silent() from None
        bits = {
            name: (one.get_most_significant_bits(), one.get_least_significant_bits())
            for name, one in found.items()
        }
        return {name: str(found[name]) for name, both in bits.items() if any(both)}

    def operations(self, topics: Collection[str]) -> dict[str, set[str]]:
        """Return the operations that the user may do on each topic, such as READ; without an authorizer all
        of them.
        """
        seconds = self.settings.request_timeout_seconds
        try:
            asked = self._admin.describe_topics(
                TopicCollection(list(topics)), request_timeout=seconds, include_authorized_operations=True
            )
            return {
                name: {operation.name for operation in answer.result(seconds).authorized_operations or ()}
                for name, answer in asked.items()
            }
        except KafkaException as error:
            raise self._explained(error) from None
        except TimeoutError:
            raise self._silent() from None

    def spans(self, partitions: Iterable[Partition]) -> dict[Partition, Span]:
        """Return the span of each partition, from the first record that is left to the end of the committed
        ones.
        """
        partitions = list(partitions)
        begin, behind = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        first, end = self._offsets(partitions, begin), self._offsets(partitions, behind)
        return {partition: Span(first[partition], end[partition]) for partition in partitions}

    def high_watermarks(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Return for each partition the offset behind its last record, committed or in an open
        transaction.
        """
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(list(partitions), latest, IsolationLevel.READ_UNCOMMITTED)

    def read(self, topic: str, partition: int, span: Span) -> Iterator[KafkaRecord]:
        """Yield the records of a span one by one; for few records. Raises as `messages` does."""
        for some in self.messages(topic, partition, span):
            yield from map(_record, some)

    def messages(self, topic: str, partition: int, span: Span) -> Iterator[list[Any]]:
        """Yield the records of a span as librdkafka has them, at most POLLED at once.

        Raises StoreUnavailable: no record came for request_timeout_seconds. RecordsLost: the first record is gone.
        """
        if span.first >= span.end:
            return
        # What is fetched behind the span's end is lost; a full queue is soon read.
        ahead = {
            "queued.min.messages": min(span.end - span.first, FETCHED_AHEAD),
            "fetch.queue.backoff.ms": 10,
        }
        consumer = self._client(
            Consumer,
            {
                "group.id": "tagmill",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                **{name: value for name, value in ahead.items() if name not in self.settings.properties},
            },
        )
        try:
            consumer.assign([TopicPartition(topic, partition, span.first)])
            yield from self._polled(consumer, span)
        except KafkaException as error:
            raise self._explained(error) from None
        finally:
            consumer.close()

    def publish(self, records: Iterable[KafkaRecord]) -> int:
        """Write records to the partitions that they name, acknowledged by all replicas; return how many.

        Kafka assigns the offsets. Stops at the first record that Kafka does not acknowledge within
        request_timeout_seconds, or refuses.
        """
        limit = {"message.timeout.ms": int(self.settings.request_timeout_seconds * 1000)}
        producer = self._client(
            Producer, {"acks": "all", "enable.idempotence": True, "linger.ms": 20, **limit}
        )
        failure: KafkaError | None = None
        acknowledged = 0

        def delivered(error: KafkaError | None, _: Any) -> None:
            nonlocal failure, acknowledged
            acknowledged += error is None
            failure = failure or error

        def require_no_failure() -> None:
            if failure is not None:
                raise KafkaException(failure)

        try:
            for record in records:
                _produce(producer, record, delivered, require_no_failure)
            producer.flush()  # ends, since each record is acknowledged or fails within the limit
            require_no_failure()
        except KafkaException as error:
            producer.purge()
            raise self._explained(error, f". {acknowledged} records were acknowledged before") from None
        return acknowledged

    def _client(self, kind: Any, conf: Mapping[str, Any] | None = None) -> Any:
        """Create a client with this configuration in addition to the common one.

        Raises ConfigurationError: the login is incomplete, a file of TLS can't be used, or librdkafka doesn't
        take a property.
        """
        try:
            return kind({**self.client_options(), **(conf or {})})
        except KafkaException as error:
            said = error.args[0].str().strip()
            if error.args[0].code() == KafkaError._INVALID_ARG and (
                named := [name for name in self.settings.properties if name in said]
            ):
                raise PropertyRefused(
                    f"kafka.properties: {max(named, key=len)}: {said}. Nothing was done"
                ) from None
            raise self._explained(error) from None

    def client_options(self) -> dict[str, Any]:
        """Return the options that all clients share. They hold secrets: never log them."""
        chosen = self.settings
        conf: dict[str, Any] = {
            **chosen.properties,
            "bootstrap.servers": ",".join(chosen.bootstrap_servers),
            "security.protocol": _security_protocol(chosen),
            "socket.timeout.ms": int(chosen.request_timeout_seconds * 1000),
            "log_level": 0,
            "error_cb": self._login_error.note,
        }
        if chosen.tls:
            tls.context("kafka", chosen)
            files = {
                "ssl.ca.location": chosen.tls_ca_file,
                "ssl.certificate.location": chosen.tls_certificate_file,
                "ssl.key.location": chosen.tls_certificate_file
                and (chosen.tls_key_file or chosen.tls_certificate_file),
            }
            conf |= {name: str(file) for name, file in files.items() if file}
            if chosen.tls_certificate_file and chosen.tls_key_password:
                conf["ssl.key.password"] = chosen.tls_key_password.get_secret_value()
        return conf | self._login()

    def _login(self) -> dict[str, str]:
        chosen, username = self.settings, self.settings.username or ""
        password = chosen.password.get_secret_value() if chosen.password else ""
        if chosen.sasl_mechanism is None:
            return {}
        if chosen.sasl_mechanism != "OAUTHBEARER":
            return {
                "sasl.mechanism": chosen.sasl_mechanism,
                "sasl.username": username,
                "sasl.password": password,
            }
        if not username or not password:
            raise ConfigurationError(
                "kafka.sasl_mechanism: OAUTHBEARER needs the client's id and secret. Nothing was done; set "
                "TAGMILL_KAFKA__USERNAME and TAGMILL_KAFKA__PASSWORD, or the Airflow connection"
            )
        if chosen.oauth_ca_file:
            tls.authorities("kafka", chosen.oauth_ca_file, key="oauth_ca_file")
        # By itself, librdkafka looks for the system's authorities where only some systems have them.
        trusted = chosen.oauth_ca_file or ssl.get_default_verify_paths().cafile
        extensions = ",".join(f"{name}={value}" for name, value in chosen.oauth_extensions.items())
        wanted = {
            "sasl.mechanism": chosen.sasl_mechanism,
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": username,
            "sasl.oauthbearer.client.secret": password,
            "sasl.oauthbearer.token.endpoint.url": chosen.oauth_token_url,
            "sasl.oauthbearer.scope": chosen.oauth_scope,
            "sasl.oauthbearer.extensions": extensions,
            "https.ca.location": str(trusted) if trusted else None,
        }
        return {name: value for name, value in wanted.items() if value}

    def _offsets(
        self,
        partitions: list[Partition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Mapping[Partition, int]:
        patience = Retrying(
            retry=retry_if_exception(_leaderless),
            wait=wait_fixed(0.5),
            reraise=True,
            stop=stop_after_delay(self.settings.request_timeout_seconds),
        )
        try:
            return patience(self._asked, partitions, spec, isolation)
        except KafkaException as error:
            raise self._explained(error) from None

    def _asked(
        self, partitions: list[Partition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> Mapping[Partition, int]:
        if not partitions:
            return {}
        seconds = self.settings.request_timeout_seconds
        asked = self._admin.list_offsets(
            {TopicPartition(*partition): spec for partition in partitions},
            isolation_level=isolation,
            request_timeout=seconds,
        )
        try:
            found = {
                (one.topic, one.partition): answer.result(seconds).offset for one, answer in asked.items()
            }
        except TimeoutError:
            raise self._silent() from None
        self._answered()
        return found

    def _polled(self, consumer: Consumer, span: Span) -> Iterator[list[Any]]:
        patience = time.monotonic() + self.settings.request_timeout_seconds
        while time.monotonic() < patience:
            found, ended = list[Any](), False
            for message in self._some(consumer):
                error, offset = message.error(), message.offset()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if error is not None and offset < span.end:
                    continue  # A leader that is behind, or a log that was cut off: these are not all records.
                if error is None and offset < span.end:
                    found.append(message)
                if ended := error is not None or offset >= span.end - 1:
                    break
            if found:
                yield found
            if ended:
                return
            if found:  # The caller may have needed time for them.
                patience = time.monotonic() + self.settings.request_timeout_seconds
        raise self._login_refusal() or StoreUnavailable(
            f"{self.where}: records did not come in {self.settings.request_timeout_seconds:g} s. Try again"
        )

    @staticmethod
    def _some(consumer: Consumer) -> list[Any]:
        return list(consumer.consume(POLLED, timeout=POLL_SECONDS))

    def _tls_refusal(self) -> TagmillError | None:
        if self.settings.tls:
            for server in self.settings.bootstrap_servers:
                host, _, port = server.rpartition(":")
                if port.isdigit():
                    address, seconds = (host.strip("[]"), int(port)), self.settings.request_timeout_seconds
                    if refused := tls.refusal("kafka", self.where, address, self.settings, seconds):
                        return refused
        return None

    def _answered(self) -> None:
        """Forget errors of logins that have worked since."""
        self._admin.poll(0)
        self._login_error.said = ""

    def _login_refusal(self) -> TagmillError | None:
        """Return the error of a login that fails, which requests only notice by silence."""
        self._admin.poll(0)
        if not (said := self._login_error.said):
            return None
        if NO_TOKEN_YET.search(said):
            return StoreUnavailable(f"{self.where}: {said}. Nothing was done; try again")
        where = "the oauth keys of [kafka]" if self.settings.sasl_mechanism == "OAUTHBEARER" else "[kafka]"
        return ConfigurationError(
            f"{self.where}: {said}. Nothing was done; correct {where}, its user name and password"
        )

    def _silent(self) -> TagmillError:
        return (
            self._tls_refusal()
            or self._login_refusal()
            or StoreUnavailable(
                f"{self.where} did not answer in {self.settings.request_timeout_seconds:g} s. Nothing was "
                "done; try again"
            )
        )

    def _explained(self, error: KafkaException, done: str = "") -> TagmillError:
        """Return an error of Kafka's client as Tagmill's; `done` says what was done until then."""
        if refused := self._tls_refusal():
            return refused
        cause: KafkaError = error.args[0]
        if cause.code() in SILENT and (no_login := self._login_refusal()):
            return no_login
        if cause.code() in GONE:
            return RecordsLost(
                f"{self.where}: records went while they were read. Nothing was sealed; run it again"
            )
        said = f"{self.where}: {cause.str().strip()}{done}"
        with_state = said if done else f"{said}. Nothing was done"
        if cause.code() == KafkaError._INVALID_ARG or cause.code() in REFUSED:
            return ConfigurationError(
                f"{with_state}; correct [kafka], its user name and password, or the user's rights"
            )
        if cause.code() in UNKNOWN:
            return ConfigurationError(
                f"{with_state}; correct the topics of [pipelines], or the user's rights"
            )
        return StoreUnavailable(f"{said}. Every step is safe to repeat: run the same command again")


def _produce(
    producer: Producer, record: KafkaRecord, delivered: Any, require_no_failure: Callable[[], None]
) -> None:
    """Hand a record to the producer, once its queue has room and as long as no record has failed."""
    where: Any = {"partition": record.partition, "headers": record.headers, "on_delivery": delivered}
    while True:
        try:
            producer.produce(record.topic, record.value, record.key, **where)
            break
        except BufferError:
            producer.poll(1)
            require_no_failure()
    producer.poll(0)
    require_no_failure()


def _leaderless(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in LEADERLESS


def _security_protocol(settings: KafkaSettings) -> str:
    """Return Kafka's name for whether the connection has a login, and TLS."""
    return ("sasl_" if settings.sasl_mechanism else "") + ("ssl" if settings.tls else "plaintext")


def milliseconds(message: Any) -> int:
    """Return the milliseconds since EARLIEST of a record's timestamp, from EARLIEST to LATEST."""
    kind, found = message.timestamp()
    return 0 if kind == TIMESTAMP_NOT_AVAILABLE else max(min(found, LATEST_MS), 0)


def headers_of(message: Any) -> Headers:
    """Return a record's headers, or NAME_NOT_UTF8.

    Call it once a message: after an error, the message returns the broken list.
    """
    try:
        return _headers(message) or []
    except (SystemError, UnicodeDecodeError):
        return NAME_NOT_UTF8


def _record(message: Any) -> KafkaRecord:
    position = (str(message.topic()), int(message.partition() or 0), int(message.offset() or 0))
    at = EARLIEST + timedelta(milliseconds=milliseconds(message))
    return KafkaRecord(*position, at, message.key(), message.value(), headers_of(message))
