"""Say which properties of librdkafka a configuration may set, and which belong to Tagmill."""

import re
from collections.abc import Mapping

Value = str | bool | int | float
# librdkafka's own names: those with an underscore are callbacks and its log level.
NAME = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)*")
SECRET = re.compile(r"password|secret|passphrase|private\.key|\.key\.pem")
LOGIN = "TAGMILL_KAFKA__USERNAME and TAGMILL_KAFKA__PASSWORD"
OF_KEY = "TAGMILL_KAFKA__TLS_KEY_PASSWORD"
# Properties for which the section has keys or variables of its own.
OWN_KEYS = {
    "bootstrap.servers": "kafka.bootstrap_servers",
    "metadata.broker.list": "kafka.bootstrap_servers",
    "security.protocol": "kafka.tls and kafka.sasl_mechanism",
    "socket.timeout.ms": "kafka.request_timeout_seconds",
    "sasl.mechanism": "kafka.sasl_mechanism",
    "sasl.mechanisms": "kafka.sasl_mechanism",
    "sasl.username": LOGIN,
    "sasl.oauthbearer.client.id": LOGIN,
    "sasl.oauthbearer.method": "kafka.sasl_mechanism",
    "sasl.oauthbearer.scope": "kafka.oauth_scope",
    "sasl.oauthbearer.extensions": "kafka.oauth_extensions",
    "sasl.oauthbearer.token.endpoint.url": "kafka.oauth_token_url",
    "https.ca.location": "kafka.oauth_ca_file",
    "https.ca.pem": "kafka.oauth_ca_file",
    "ssl.ca.location": "kafka.tls_ca_file",
    "ssl.ca.pem": "kafka.tls_ca_file",
    "ssl.certificate.location": "kafka.tls_certificate_file",
    "ssl.certificate.pem": "kafka.tls_certificate_file",
    "ssl.key.location": "kafka.tls_key_file",
    "ssl.keystore.location": "kafka.tls_certificate_file",
}
# Properties by which Tagmill reads each committed record of a span once, and writes with all replicas' word.
PROTOCOL = frozenset(
    {
        *("group.id", "group.instance.id", "group.protocol", "isolation.level", "enable.partition.eof"),
        *("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "auto.offset.reset"),
        *("acks", "request.required.acks", "enable.idempotence", "linger.ms", "queue.buffering.max.ms"),
        *("transactional.id", "allow.auto.create.topics"),
    }
)
# Properties that would let a client connect to a server that it can't verify, or run code of others.
TRUST = frozenset(
    {
        *("enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm"),
        *("enable.sasl.oauthbearer.unsecure.jwt", "plugin.library.paths"),
    }
)


def permitted(properties: Mapping[str, Value]) -> dict[str, str]:
    """Return the properties as librdkafka takes them; raises ValueError for one that Tagmill sets, or a secret.

    Whether librdkafka knows a property, and takes its value, turns out when a client is made.
    """
    for name in properties:
        if fault := _fault(name):
            raise ValueError(f"{name} {fault}")
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in properties.items()
    }


def _fault(name: str) -> str:
    """Return why a property can't be set; empty: it can."""
    if own := OWN_KEYS.get(name):
        return f"is set by {own}"
    if SECRET.search(name):
        variable = OF_KEY if name.startswith("ssl.") else LOGIN
        return f"is a secret, which doesn't belong in the file; set {variable}"
    if name in PROTOCOL:
        return "belongs to how Tagmill reads and writes; leave it out"
    if name in TRUST:
        return "would weaken what Tagmill checks; leave it out"
    if not NAME.fullmatch(name):
        return "is no property of librdkafka that a file can set; leave it out"
    return ""
