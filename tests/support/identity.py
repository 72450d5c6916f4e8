"""An identity provider for tests: a token endpoint that signs tokens, and the broker's properties that accept them."""

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT, SECRET, SCOPE, AUDIENCE = "tagmill", "s3cr3t-of-the-client", "topics", "kafka"
PREFIX = "listener.name.sasl_plaintext.oauthbearer"
PACKAGE = "org.apache.kafka.common.security.oauthbearer"


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


class Provider:
    """Signs tokens for one client; `keys` is the file of its public key, `scopes` what each request asked for."""

    def __init__(self, folder: Path) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.keys = folder / "keys.json"
        numbers = self.key.public_key().public_numbers()
        whole = {"n": numbers.n.to_bytes(256), "e": numbers.e.to_bytes(3)}
        public = {name: _encoded(value) for name, value in whole.items()}
        self.keys.write_text(json.dumps({"keys": [{"kty": "RSA", "kid": "1", "alg": "RS256", **public}]}))
        self.scopes: list[str] = []
        self.url = ""

    def token(self) -> str:
        """Return a signed token that is valid for an hour."""
        now = int(time.time())
        claims = {"sub": CLIENT, "aud": AUDIENCE, "scope": SCOPE, "iat": now, "exp": now + 3600}
        parts = ({"alg": "RS256", "kid": "1"}, claims)
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        signed = self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{_encoded(signed)}"

    def broker_properties(self) -> str:
        """Return the properties by which a broker takes the provider's tokens; the broker is a client of itself."""
        login = f'{PACKAGE}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        return (
            "sasl.enabled.mechanisms=OAUTHBEARER\nsasl.mechanism.inter.broker.protocol=OAUTHBEARER\n"
            f"{PREFIX}.sasl.jaas.config={login}\n"
            f"{PREFIX}.sasl.server.callback.handler.class={PACKAGE}.OAuthBearerValidatorCallbackHandler\n"
            f"sasl.oauthbearer.jwks.endpoint.url={self.keys.as_uri()}\n"
            f"sasl.oauthbearer.expected.audience={AUDIENCE}\n"
        )

    def broker_flags(self) -> list[str]:
        """Return the flag that lets a broker read the provider's keys."""
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.keys.as_uri()}"]


@contextmanager
def serving(provider: Provider, certificate: tuple[Path, Path]) -> Iterator[Provider]:
    """Serve the provider's token endpoint by HTTPS on 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            provider.scopes += form.get("scope", [])
            login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
            granted = self.headers["Authorization"] == f"Basic {login}"
            answer = {"error": "invalid_client", "error_description": "who are you"}
            if granted:
                answer = {"access_token": provider.token(), "token_type": "Bearer", "expires_in": "3600"}
            body = json.dumps(answer).encode()
            self.send_response(200 if granted else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    provider.url = f"https://127.0.0.1:{server.server_address[1]}/token"
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
