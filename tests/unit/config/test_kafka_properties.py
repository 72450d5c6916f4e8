"""Properties of librdkafka in the configuration: which are passed on, and which are refused by name."""

import pytest

from tagmill.config.kafka import KafkaSettings
from tagmill.config.settings import Settings
from tagmill.errors import ConfigurationError
from tagmill.kafka.client import Kafka


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, "belongs to how Tagmill reads and writes") for name in ("group.id", "enable.auto.commit")),
        *(
            (name, "belongs to how Tagmill reads and writes")
            for name in ("isolation.level", "auto.offset.reset")
        ),
        *((name, "belongs to how Tagmill reads and writes") for name in ("enable.partition.eof", "acks")),
        ("bootstrap.servers", "is set by kafka.bootstrap_servers"),
        ("ssl.certificate.location", "is set by kafka.tls_certificate_file"),
        ("ssl.keystore.location", "is set by kafka.tls_certificate_file"),
        ("ssl.keystore.password", "is a secret.*TAGMILL_KAFKA__TLS_KEY_PASSWORD"),
        ("sasl.oauthbearer.token.endpoint.url", "is set by kafka.oauth_token_url"),
        ("enable.ssl.certificate.verification", "would weaken what Tagmill checks"),
        ("sasl.password", "is a secret.*TAGMILL_KAFKA__PASSWORD"),
        ("sasl.oauthbearer.client.secret", "is a secret.*TAGMILL_KAFKA__PASSWORD"),
        ("ssl.key.password", "is a secret.*TAGMILL_KAFKA__TLS_KEY_PASSWORD"),
        ("ssl.key.pem", "is a secret.*TAGMILL_KAFKA__TLS_KEY_PASSWORD"),
        ("error_cb", "is no property of librdkafka that a file can set"),
    ],
)
def test_property_of_tagmill_is_refused(tmp_path, name: str, words: str) -> None:
    """Name the property in one line, without its value."""
    file = tmp_path / "tagmill.toml"
    file.write_text(f'[kafka.properties]\n"{name}" = "sesame"\n')
    with pytest.raises(ConfigurationError, match=f"tagmill.toml: kafka.properties: {name} {words}") as error:
        Settings.load(file)
    assert "sesame" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("no.such.property", "x", "No such configuration property"),
        ("fetch.min.bytes", "many", "Invalid value"),
        ("socket.keepalive.enable", "maybe", "Expected bool value"),
        ("opaque", "x", "must be set through"),
        ("retries", "0", "retries"),
    ],
)
def test_property_that_librdkafka_refuses_is_named(name: str, value: str, words: str) -> None:
    """Librdkafka knows its properties, so a client says it in one line, before it connects."""
    with pytest.raises(ConfigurationError, match=f"kafka.properties: {name}: .*{words}") as error:
        Kafka(KafkaSettings(properties={name: value})).publish([])
    assert "\n" not in str(error.value)


def test_properties_reach_clients_as_texts() -> None:
    """Numbers and booleans become texts."""
    given = {
        "client.rack": "a",
        "fetch.max.bytes": 1_000_000,
        "check.crcs": True,
        "socket.keepalive.enable": False,
    }
    settings = KafkaSettings(properties=given)
    assert settings.properties == {
        "client.rack": "a",
        "fetch.max.bytes": "1000000",
        "check.crcs": "true",
        "socket.keepalive.enable": "false",
    }
    with Kafka(settings) as kafka:
        assert kafka.client_options().items() >= settings.properties.items()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('sasl_mechanism = "OAUTHBEARER"', "oauth_token_url: OAUTHBEARER needs it"),
        ('oauth_scope = "s"', 'oauth_scope: only sasl_mechanism = "OAUTHBEARER" has it'),
        ('sasl_mechanism = "OAUTHBEARER"\noauth_token_url = "login.example.org"', "must begin with https://"),
        (
            'sasl_mechanism = "OAUTHBEARER"\noauth_token_url = "https://a:sesame@b/c"',
            "a login doesn't belong in it",
        ),
    ],
    ids=["no endpoint", "no mechanism", "no scheme", "login"],
)
def test_token_login_incomplete_is_refused(tmp_path, keys: str, words: str) -> None:
    file = tmp_path / "tagmill.toml"
    file.write_text(f"[kafka]\n{keys}\n")
    with pytest.raises(ConfigurationError, match=words) as error:
        Settings.load(file)
    assert "sesame" not in str(error.value)
