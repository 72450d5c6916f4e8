"""Send a record whose headers have names that are not UTF-8: confluent-kafka takes only text, librdkafka any bytes."""

from collections.abc import Sequence
from ctypes import CDLL, c_int32, c_ssize_t, c_void_p, create_string_buffer
from pathlib import Path
from typing import Any

import confluent_kafka

# Tags of rd_kafka_producev's arguments (rdkafka.h), and the flag to copy key and value.
END, TOPIC, PARTITION, VALUE, KEY, FLAGS, HEADERS, COPY = 0, 1, 3, 4, 5, 7, 10, 2


def send(port: int, topic: str, key: bytes, value: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Send one record to partition 0, and wait until it has arrived."""
    library, error = _library(), create_string_buffer(500)
    conf = library.rd_kafka_conf_new()
    bootstrap = f"127.0.0.1:{port}".encode()
    assert library.rd_kafka_conf_set(c_void_p(conf), b"bootstrap.servers", bootstrap, error, 500) == 0
    producer = c_void_p(library.rd_kafka_new(0, c_void_p(conf), error, 500))
    made = c_void_p(library.rd_kafka_headers_new(len(headers)))
    for name, content in headers:
        library.rd_kafka_header_add(made, name, c_ssize_t(len(name)), content, c_ssize_t(len(content)))
    where: list[Any] = [TOPIC, topic.encode(), PARTITION, c_int32(0), FLAGS, COPY, HEADERS, made]
    what = [VALUE, value, c_ssize_t(len(value)), KEY, key, c_ssize_t(len(key))]
    assert library.rd_kafka_producev(producer, *where, *what, END) == 0
    assert library.rd_kafka_flush(producer, 10_000) == 0
    library.rd_kafka_destroy(producer)


def _library() -> CDLL:
    packages = Path(confluent_kafka.__file__).parents[1]
    library = CDLL(str(next((packages / "confluent_kafka.libs").glob("librdkafka*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, name).restype = c_void_p
    return library
