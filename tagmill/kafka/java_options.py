"""Say how Spark's Kafka source, which is Kafka's Java client, reaches the cluster of the settings."""

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tagmill.config.client_certificate import client_certificate
from tagmill.config.kafka import KafkaSettings
from tagmill.config.kafka_properties import for_java

SECURITY = "org.apache.kafka.common.security"


def security_protocol(settings: KafkaSettings) -> str:
    """Return Kafka's name for whether the connection has a login, and TLS."""
    return ("SASL_" if settings.sasl_mechanism else "") + ("SSL" if settings.tls else "PLAINTEXT")


def java_options(settings: KafkaSettings) -> dict[str, str]:
    """Return the options of Spark's Kafka source; they contain secrets, so never log them.

    The client's certificate and key are in the options, so that executors don't need the files.

    Raises ConfigurationError if a file of the client certificate can't be used.
    """
    options = {
        **for_java(settings.properties),
        "bootstrap.servers": ",".join(settings.bootstrap_servers),
        "security.protocol": security_protocol(settings),
        "isolation.level": "read_committed",
        **_tls(settings),
        **_login(settings),
    }
    return {f"kafka.{name}": value for name, value in options.items()}


def _tls(settings: KafkaSettings) -> dict[str, str]:
    if not settings.tls:
        return {}
    options = _trust(str(settings.tls_ca_file)) if settings.tls_ca_file else {}
    if shown := client_certificate("kafka", settings):
        chain = (one.public_bytes(Encoding.PEM).decode() for one in (shown.certificate, *shown.between))
        key = shown.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": "".join(chain),
            "ssl.keystore.key": key.decode(),
        }
    return options


def _trust(ca_file: str) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": ca_file}


def _login(settings: KafkaSettings) -> dict[str, str]:
    mechanism, username = settings.sasl_mechanism, settings.username or ""
    password = settings.password.get_secret_value() if settings.password else ""
    if mechanism is None:
        return {}
    if mechanism != "OAUTHBEARER":
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        return {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": _jaas(module, {"username": username, "password": password}),
        }
    keys = {"clientId": username, "clientSecret": password}
    if settings.oauth_scope:
        keys["scope"] = settings.oauth_scope
    keys |= {f"extension_{name}": value for name, value in settings.oauth_extensions.items()}
    if settings.oauth_ca_file:
        keys |= _trust(str(settings.oauth_ca_file))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": _jaas("oauthbearer.OAuthBearerLoginModule", keys),
        "sasl.login.callback.handler.class": f"{SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": settings.oauth_token_url or "",
    }


def _jaas(module: str, keys: dict[str, str]) -> str:
    """Return a login of JAAS, with its values quoted."""
    quoted = (f"{name}={_quoted(value)}" for name, value in keys.items())
    return f"{SECURITY}.{module} required {' '.join(quoted)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
