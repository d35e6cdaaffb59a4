"""The OIDC server as tests run it: a process of its own, and what they tell it to do."""

import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from tests.support.oidc.provider import CONTROL, DISCOVERY, KEYS, SIGN, TOKEN
from tests.support.shared_stack import ROOT

AUDIENCE = "duckicelake-tests"
NAME = "acme"


class Issuing:
    """A running provider. It may be stopped, and started again where it was with other keys."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        """The issuer's URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def token_url(self) -> str:
        """Where clients get tokens."""
        return self.url + TOKEN

    def start(self) -> None:
        """Start it where it was."""
        command = [sys.executable, "-m", "tests.support.oidc.provider", str(self.port)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.do(claims={"aud": AUDIENCE})

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.kill()
            self._process.wait(30)
            self._process.stdout.close()
            self._process = None

    def ask(self, method: str, path: str, told: Any = None) -> Any:
        """Ask it for JSON."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, None if told is None else json.dumps(told))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def do(self, **told: Any) -> None:
        """Tell it what to do: `rotate`, `claims`, `answers`."""
        self.ask("POST", CONTROL, told)

    def rotate(self, algorithm: str = "RS256", *, keeps: bool = False) -> None:
        """Make a new key."""
        self.do(rotate={"algorithm": algorithm, "keeps": keeps})

    def count(self) -> int:
        """How often its keys were asked for; a document about itself comes before each."""
        counts = self.ask("GET", CONTROL)["counts"]
        assert counts.get(KEYS, 0) <= counts.get(DISCOVERY, 0)
        return counts.get(DISCOVERY, 0)

    def sign(self, claims: dict[str, Any], header: dict[str, Any] | None = None, secret: str | None = None) -> str:
        """A token with these claims and no others."""
        return self.ask("POST", SIGN, {"claims": claims, "header": header or {}, "secret": secret})["token"]

    def token(self, sub: str = "alice", header: dict[str, Any] | None = None, secret: str | None = None, **changed: Any) -> str:
        """A token that is good, but for what is changed; None takes a claim away."""
        now = int(time.time())
        claims = {"iss": self.url, "sub": sub, "aud": AUDIENCE, "iat": now, "exp": now + 600} | changed
        return self.sign({name: claim for name, claim in claims.items() if claim is not None}, header, secret)

    def settings(self, **changed: Any) -> dict[str, Any]:
        """How settings name it."""
        return {"name": NAME, "issuer": self.url, "audience": AUDIENCE, "roles_claim": "groups", **changed}


@contextmanager
def issuing() -> Generator[Issuing]:
    """A provider until the end of the block."""
    running = Issuing()
    try:
        yield running
    finally:
        running.stop()
