"""Requests to the webhook of events: CloudEvents over HTTP, signed as Standard Webhooks say.

The thread of `catalog.events` calls `send`, while it holds its transaction in Postgres; `app` decodes the secret at the start.
Source: CloudEvents HTTP protocol binding 1.0.2 (structured and batched content mode); Standard Webhooks 1.0.0 (headers, signature).
"""

import base64
import binascii
import hashlib
import hmac
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from threading import Event, Timer
from typing import Any
from urllib.parse import urlsplit

from duckicelake.errors import BadRequest

SECRET_PREFIX = "whsec_"
FEWEST_BYTES = 24
"""Standard Webhooks want a secret of at least so many bytes."""


def decode_secret(text: str) -> bytes:
    """Return the bytes of a secret: `whsec_` and base64, or the text itself. Raises: BadRequest: it is too short, or not base64."""
    text = text.strip()
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True) if text.startswith(SECRET_PREFIX) else text.encode()
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"The secret of events.webhook begins with {SECRET_PREFIX}, but is no base64.") from error
    if len(secret) < FEWEST_BYTES:
        raise BadRequest(f"The secret of events.webhook has fewer than {FEWEST_BYTES} bytes; make a longer one.")
    return secret


@dataclass(frozen=True, slots=True)
class WebhookSender:
    """Send events to one URL. `timeout_s` bounds a request as a whole. Redirects are not followed, and proxies are not used."""

    url: str
    secret: bytes = field(repr=False)
    timeout_s: float
    ca_file: Path | None = None
    is_batched: bool = True
    clock: Callable[[], float] = time.time

    def send(self, events: Sequence[Mapping[str, Any]]) -> str | None:
        """Send events in one request; without batches exactly one. Return None if the receiver answers 2xx, else what went wrong."""
        body = json.dumps(events if self.is_batched else events[0], ensure_ascii=False, separators=(",", ":")).encode()
        try:
            status = self._post(body, self._build_headers(events, body))
        except (OSError, HTTPException, ValueError) as error:
            return f"no answer ({type(error).__name__})"
        return None if 200 <= status < 300 else f"the answer is {status}"

    def _build_headers(self, events: Sequence[Mapping[str, Any]], body: bytes) -> Mapping[str, str]:
        # The id names the content: the same events have the same one when they are sent again, and other events another one.
        places = f"{events[0]['source']} {events[0]['id']} {events[-1]['id']}"
        message_id = f"msg_{hashlib.sha256(places.encode()).hexdigest()[:32]}"
        timestamp = str(int(self.clock()))
        signed = b".".join((message_id.encode(), timestamp.encode(), body))
        signature = base64.b64encode(hmac.new(self.secret, signed, hashlib.sha256).digest()).decode()
        return {
            "Content-Type": f"application/cloudevents{'-batch' if self.is_batched else ''}+json; charset=utf-8",
            "User-Agent": "duckicelake",
            "Connection": "close",
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{signature}",
        }

    def _post(self, body: bytes, headers: Mapping[str, str]) -> int:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self.ca_file)
            connection: HTTPConnection = HTTPSConnection(host, parts.port, timeout=self.timeout_s, context=context)
        else:
            connection = HTTPConnection(host, parts.port, timeout=self.timeout_s)
        # A receiver that sends a byte now and then would hold the request beyond any timeout of the socket.
        is_late = Event()
        cutter = Timer(self.timeout_s, _cut, (connection, is_late))
        cutter.daemon = True
        cutter.start()
        try:
            connection.connect()
            if is_late.is_set():
                raise TimeoutError
            connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body=body, headers=headers)
            status = connection.getresponse().status
            if is_late.is_set():
                # The status line came, and the rest of the answer was cut off.
                raise TimeoutError
            return status
        finally:
            cutter.cancel()
            connection.close()


def _cut(connection: HTTPConnection, is_late: Event) -> None:
    """Shut a connection down while another thread reads from it, which sees by `is_late` why the answer ended."""
    is_late.set()
    sock: socket.socket | None = connection.sock
    if sock is None:
        return
    try:
        # SSLSocket.shutdown would remove the TLS layer while the other thread reads, so call the plain socket's method.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return
