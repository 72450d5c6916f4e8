"""What Spark's Kafka source is told of certificates and logins."""

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tagmill.config.kafka import KafkaSettings
from tagmill.kafka.java_options import java_options
from tests.support.certificates import Authority


def test_key_reaches_java_decrypted(tmp_path) -> None:
    """Certificates and key are in the options, so that executors need no files; the order of the chain stays."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("us", password="sesame")
    certificate.write_bytes(certificate.read_bytes() + authority.pem)
    files = {"tls_certificate_file": certificate, "tls_key_file": key, "tls_key_password": "sesame"}
    options = java_options(KafkaSettings(tls=True, **files))
    assert options["kafka.ssl.keystore.certificate.chain"].encode() == certificate.read_bytes()
    assert load_pem_private_key(options["kafka.ssl.keystore.key"].encode(), None)
    assert options["kafka.security.protocol"] == "SSL" and "sesame" not in str(options)
    assert not [name for name in java_options(KafkaSettings(**files)) if "keystore" in name]


def test_token_login_reaches_java_quoted() -> None:
    settings = KafkaSettings(
        sasl_mechanism="OAUTHBEARER",
        oauth_token_url="https://login.example.org/token",
        oauth_scope="a b",
        oauth_extensions={"logicalCluster": "lkc-1"},
        oauth_ca_file="/ca.pem",
        username="us",
        password='"; evil="',
    )
    options = java_options(settings)
    login = options["kafka.sasl.jaas.config"]
    assert login.startswith(
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId="
    )
    for part in (
        r'clientSecret="\"; evil=\""',
        'scope="a b"',
        'extension_logicalCluster="lkc-1"',
        '"/ca.pem"',
    ):
        assert part in login
    assert options["kafka.sasl.oauthbearer.token.endpoint.url"] == settings.oauth_token_url
    assert options["kafka.security.protocol"] == "SASL_PLAINTEXT"
