"""Signs clients' requests to the store with the server's own keys, which stay here."""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import boto3

from duckicelake.errors import NotServed, ServiceUnavailable
from duckicelake.store.keys.asks import Ask, plain_host
from duckicelake.store.keys.sigv4 import DATE, DATE_FORMAT, HASH, TOKEN, RootKeys, Wire, sign
from duckicelake.store.s3 import StoreSettings

PROBE_SECONDS = 3


class Signer:
    """Signs what somebody else has found to be allowed. Safe to share between threads."""

    def __init__(self, store: StoreSettings) -> None:
        self.store = store
        self._is_strict: bool | None = None
        self._session: Any = None

    def sign(self, ask: Ask) -> tuple[str, dict[str, str]]:
        """Return the URI to send the request to, and the headers to add to it.

        Raises: NotServed: the store would take a signed request with more than was signed. ServiceUnavailable: it does not answer
        """
        self.check_strict(ask.spellings[0].split("/")[2])
        keys = self._find_keys()
        wire = ask.wire if keys.session_token is None else _with_token(ask.wire, keys.session_token)
        query = f"?{wire.encoded_query}" if wire.query else ""
        signed = {**wire.headers, "authorization": sign(wire, keys, self.store.region)}
        # PyIceberg's signer adds headers beside those of the same name
        headers = {name: value for name, value in signed.items() if name not in ask.sent}
        return f"{ask.scheme}://{wire.host}{wire.encoded_path}{query}", headers

    def check_strict(self, bucket: str) -> None:
        """Raise NotServed for a store that obeys headers nobody signed: a signed PUT would copy whatever its client likes.

        AWS does not. Others are asked once, whether a list is refused for the sake of such a header.
        """
        if self.store.endpoint is None:
            return
        if self._is_strict is None:
            plain, more = self._probe(bucket, {}), self._probe(bucket, {"x-amz-meta-unsigned": secrets.token_hex(4)})
            if plain != 200:
                raise ServiceUnavailable(f"The object store at {self.store.endpoint} does not let us list the bucket {bucket!r} ({plain}).")
            if more not in (200, 400, 403):
                raise ServiceUnavailable(
                    f"The object store at {self.store.endpoint} does not say what it makes of unsigned headers ({more})."
                )
            self._is_strict = more != 200
        if not self._is_strict:
            raise NotServed(
                f"The object store at {self.store.endpoint} obeys headers that are not signed, so a signature would open all of it; "
                "use vended keys (sts_role_arn), or keys of your own."
            )

    def _probe(self, bucket: str, unsigned: dict[str, str]) -> int:
        parts = urlsplit(self.store.endpoint or "")
        date = datetime.fromtimestamp(time.time(), UTC).strftime(DATE_FORMAT)
        query = (("list-type", "2"), ("max-keys", "1"), ("prefix", "signing-probe"))
        wire = Wire("GET", plain_host(parts), f"/{bucket}", query, {HASH: "UNSIGNED-PAYLOAD", DATE: date})
        keys = self._find_keys()
        wire = wire if keys.session_token is None else _with_token(wire, keys.session_token)
        headers = {**wire.headers, **unsigned, "authorization": sign(wire, keys, self.store.region)}
        opened = (HTTPSConnection if parts.scheme == "https" else HTTPConnection)(parts.netloc, timeout=PROBE_SECONDS)
        try:
            opened.request("GET", f"{wire.encoded_path}?{wire.encoded_query}", headers=headers)
            return opened.getresponse().status
        except (OSError, HTTPException) as error:
            raise ServiceUnavailable(f"The object store at {self.store.endpoint} does not answer ({type(error).__name__}).") from None
        finally:
            opened.close()

    def _find_keys(self) -> RootKeys:
        store = self.store
        if store.access_key_id is not None and store.secret_access_key is not None:
            return RootKeys(store.access_key_id, store.secret_access_key)
        if self._session is None:
            make_session: Callable[[], Any] = getattr(boto3, "Session")  # noqa: B009  boto3 makes its clients at run time, without types
            self._session = make_session()
        found: Any = self._session.get_credentials()
        if found is None:
            raise ServiceUnavailable("The server has no keys for the object store, so it can sign nothing.")
        frozen: Any = found.get_frozen_credentials()
        return RootKeys(frozen.access_key, frozen.secret_key, frozen.token)


def _with_token(wire: Wire, token: str) -> Wire:
    return Wire(wire.method, wire.host, wire.path, wire.query, {**wire.headers, TOKEN: token})
