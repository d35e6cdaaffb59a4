"""An OIDC server, run as a process: discovery, keys and tokens for clients; `/control` makes it rotate keys, lie or fall silent.

Its keys and tokens are made by joserfc, which knows nothing of the code under test.
"""

import base64
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

DISCOVERY, KEYS, TOKEN, CONTROL, SIGN = "/.well-known/openid-configuration", "/keys", "/token", "/control", "/sign"
LIFETIME_S = 600
SECRET = "secret of the client"


class Provider(ThreadingHTTPServer):
    """The server's state: newest key first; what it claims of each client; and what it was told to do wrong."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Answering)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.lock = Lock()
        self.made_count = 0
        self.keys: list[Key] = []
        self.claims: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.answers: dict[str, Any] = {}
        self.silence = Event()
        self.rotate("RS256")

    def rotate(self, algorithm: str, *, keeps: bool = False) -> None:
        """Make a new key; the others go, unless they are kept."""
        self.made_count += 1
        told = {"kid": f"key-{self.made_count}", "alg": algorithm, "use": "sig"}
        if algorithm.startswith("ES"):
            key = ECKey.generate_key("P-256", told)
        else:
            key = OKPKey.generate_key("Ed25519", told) if algorithm == "EdDSA" else RSAKey.generate_key(2048, told)
        self.keys = [key, *self.keys] if keeps else [key]

    def sign(self, claims: dict[str, Any], header: dict[str, Any], secret: str | None = None) -> str:
        """Sign with the newest key, or with a secret."""
        key = self.keys[0] if secret is None else OctKey.import_key(secret)
        header = {"alg": self.keys[0].as_dict()["alg"], "kid": self.keys[0].as_dict()["kid"], "typ": "at+jwt"} | header
        return jwt.encode(header, claims, key, algorithms=[header["alg"]])

    def say(self, path: str) -> Any:
        """What is told at a path that everybody may ask."""
        if path == DISCOVERY:
            return {"issuer": self.url, "jwks_uri": f"{self.url}{KEYS}", "token_endpoint": f"{self.url}{TOKEN}"}
        return {"keys": [key.as_dict(private=False) for key in self.keys]} if path == KEYS else None


class Answering(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"

    @property
    def provider(self) -> Provider:
        """The server that it answers for."""
        assert isinstance(self.server, Provider)
        return self.server

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Tell what everybody may know, or what was told to be told instead."""
        path = urlsplit(self.path).path
        if path == CONTROL:
            self.answer(200, {"counts": self.provider.counts})
            return
        with self.provider.lock:
            self.provider.counts[path] = self.provider.counts.get(path, 0) + 1
        if "silent" in self.provider.answers:
            self.provider.silence.wait(60)
        other = self.provider.answers.get(path)
        if isinstance(other, dict) and "redirect" in other:
            # what it says is right: only that it leads elsewhere is not
            self.answer(302, self.provider.say(path), {"Location": other["redirect"]})
            return
        told = self.provider.say(path) if other is None else other
        self.answer(404 if told is None else 200, told)

    def do_POST(self) -> None:
        """Give a token to a client with its secret; or do as the test says."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self.path == TOKEN:
            self.give_token({name: values[0] for name, values in parse_qs(body).items()})
            return
        told = json.loads(body)
        if self.path == SIGN:
            self.answer(200, {"token": self.provider.sign(**told)})
            return
        with self.provider.lock:
            if "rotate" in told:
                self.provider.rotate(**told["rotate"])
            self.provider.claims |= told.get("claims", {})
            self.provider.answers = told.get("answers", self.provider.answers)
        self.provider.silence.set()
        self.provider.silence = Event()
        self.answer(200, {})

    def give_token(self, form: dict[str, str]) -> None:
        """Answer as RFC 6749 says."""
        kind, _, basic = self.headers.get("Authorization", "").partition(" ")
        # Trino shows the token that it has beside id and secret in the form
        basic = basic if kind == "Basic" else ""
        client, _, secret = base64.b64decode(basic).decode().partition(":") if basic else (form["client_id"], "", form["client_secret"])
        if secret != SECRET or form.get("grant_type") != "client_credentials":
            self.answer(401, {"error": "invalid_client"})
            return
        now = int(time.time())
        claims = {"iss": self.provider.url, "sub": client, "iat": now, "exp": now + LIFETIME_S, **self.provider.claims}
        self.answer(200, {"access_token": self.provider.sign(claims, {}), "token_type": "Bearer", "expires_in": LIFETIME_S})

    def answer(self, status: int, told: Any, headers: dict[str, str] | None = None) -> None:
        """Send JSON."""
        body = json.dumps(told).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    provider = Provider(int(sys.argv[1]))
    sys.stdout.write(f"{provider.server_port}\n")
    sys.stdout.flush()
    provider.serve_forever()
