"""An issuer of OpenID Connect on loopback, whose keys and answers a test changes.

Tokens are signed by another library (joserfc) than the one under test.
"""

from __future__ import annotations

import base64
import functools
import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from penstock.core.clock import Clock

Key = RSAKey | ECKey | OKPKey | OctKey

AUDIENCE = "penstock"
KEYS_PATH = "/keys"


@functools.cache
def rsa_key(kid: str = "rsa") -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid}, private=True)


@functools.cache
def ec_key(kid: str = "ec", curve: str = "P-256") -> ECKey:
    return ECKey.generate_key(curve, {"kid": kid}, private=True)


@functools.cache
def ed_key(kid: str = "ed") -> OKPKey:
    return OKPKey.generate_key("Ed25519", {"kid": kid}, private=True)


def key_set(*keys: Key) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def signed(header: object, claims: object, key: Key, algorithm: str) -> bytes:
    """A token; header and claims are objects, or bytes as they are sent."""
    parts = [
        one if isinstance(one, bytes) else json.dumps(one).encode() for one in (header, claims)
    ]
    text = b".".join(map(base64url, parts))
    return text + b"." + base64url(JWSRegistry.algorithms[algorithm].sign(text, key))


class IssuerServer:
    """An issuer that listens on a free port of loopback.

    Attributes:
        keys: Its current keys.
        is_down: Whether it answers with status 503.
        hangs: Whether it does not answer, until `close`.
        fields: Members of the discovery document that differ.
        answers: Answers by path, instead of the usual ones: status, headers and body.
        requests: Paths that were requested.
    """

    def __init__(self, clock: Clock, *keys: Key, tls: ssl.SSLContext | None = None) -> None:
        self.clock = clock
        self.keys: list[Key] = list(keys) or [ec_key()]
        self.is_down = self.hangs = False
        self.fields: dict[str, object] = {}
        self.answers: dict[str, tuple[int, Mapping[str, str], bytes]] = {}
        self.requests: list[str] = []
        self._closed = threading.Event()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer._answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def claims(self, subject: str = "alice", **more: object) -> dict[str, object]:
        now_s = self.clock.now_ms() // 1000
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": now_s}
        return {**usual, "exp": now_s + 600, **more}

    def token(
        self,
        subject: str = "alice",
        *,
        key: Key | None = None,
        algorithm: str = "ES256",
        header: Mapping[str, object] | None = None,
        **claims: object,
    ) -> bytes:
        """A valid token, apart from the arguments."""
        key = key or self.keys[0]
        head: dict[str, object] = {"alg": algorithm, "typ": "JWT", "kid": key.kid, **(header or {})}
        return signed(head, self.claims(subject, **claims), key, algorithm)

    def rules(self, more: str = "", name: str = "work") -> str:
        """The table of `access.toml`."""
        return f'[oidc.{name}]\nissuer = "{self.url}"\naudience = "{AUDIENCE}"\n{more}\n'

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(handler.path)
        if self.hangs:
            self._closed.wait(30)
            return
        status, headers, body = self._found(handler.path)
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def _found(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        if self.is_down:
            return 503, {}, b"down"
        if path in self.answers:
            return self.answers[path]
        if path == KEYS_PATH:
            return 200, {}, key_set(*self.keys)
        document: dict[str, Any] = {"issuer": self.url, "jwks_uri": self.url + KEYS_PATH}
        return 200, {}, json.dumps({**document, **self.fields}).encode()
