"""The layer that limits request bodies: their size, their time of arrival, and the number of large ones in progress.

It runs on the event loop, behind the check of the token, if there is one. Bodies are in memory only; large compressed ones are unpacked in
a thread.
"""

import asyncio
import zlib
from contextlib import ExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duckicelake.rest.errors import build_error

MAX_BODY_BYTES = 32 * 1024 * 1024
LARGE_BYTES = 1024 * 1024
MAX_CONCURRENT_LARGE = 4
MAX_UNANSWERED_LARGE = 32
"""Limit of large bodies that are decoded at a time, and of those whose responses clients have not read yet.

A decoded JSON body takes many times its size in memory.
"""

MAX_NODES = 500_000
MAX_ITEMS = 2_000_000
TOO_LARGE = f"The request's body is larger than {MAX_BODY_BYTES} bytes."
BUSY = "The server is busy with other large requests; nothing was done. Try again."
TOO_MANY = f"The request's body holds more than {MAX_NODES} arrays and objects, or {MAX_ITEMS} commas; send it in parts."
NOT_GZIP = "The request's body is not gzip, one member and whole, as its Content-Encoding says."
NO_SUCH_CODING = "The request's Content-Encoding is not supported; send gzip, or none."
GZIP = frozenset({"gzip", "x-gzip"})
BODILESS = frozenset({"GET", "HEAD"})
CLOSE = {"Connection": "close"}


class BodyLimit:
    """ASGI layer that receives the whole body before it passes a request on.

    It refuses a body that is too large or takes longer than `seconds`. It decompresses gzip, and the limits apply to the decompressed
    size. Large bodies are passed on a few at a time. The body of a GET or HEAD is ignored.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        self._large = asyncio.Semaphore(MAX_CONCURRENT_LARGE)
        self._unanswered_count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body, or refuse it. A client that has disconnected gets no response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif get_content_length(scope) > MAX_BODY_BYTES:
            await build_error(scope, 413, "BadRequestException", TOO_LARGE)(scope, receive, send)
        elif scope["method"] in BODILESS:
            await self._app(scope, receive, send)
        else:
            await self._receive_whole(scope, receive, send)

    async def _receive_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                body = await receive_body(receive)
        except TimeoutError:
            late = f"The request's body did not come within {self._seconds:g} seconds; nothing was done."
            await build_error(scope, 408, "BadRequestException", late, CLOSE)(scope, receive, send)
            return
        if body is None:
            return
        if len(body) > MAX_BODY_BYTES:
            await build_error(scope, 413, "BadRequestException", TOO_LARGE)(scope, receive, send)
        elif codings := list_codings(scope):
            await self._pass_compressed(body, codings, scope, receive, send)
        elif len(body) <= LARGE_BYTES:
            await self._app(scope, replay(body, receive), send)
        else:
            await self._pass_large(body, scope, receive, send)

    async def _pass_compressed(self, body: bytes, codings: list[str], scope: Scope, receive: Receive, send: Send) -> None:
        if len(codings) > 1 or codings[0] not in GZIP:
            await build_error(scope, 415, "BadRequestException", NO_SUCH_CODING, {"Accept-Encoding": "gzip"})(scope, receive, send)
            return
        try:
            # Decompress at most LARGE_BYTES on the event loop; a longer result is decompressed in a thread.
            small = unpack(body, LARGE_BYTES) if len(body) <= LARGE_BYTES else None
        except zlib.error:
            await build_error(scope, 400, "BadRequestException", NOT_GZIP)(scope, receive, send)
            return
        if small is None:
            await self._pass_large(body, scope, receive, send, is_compressed=True)
        else:
            set_unpacked_headers(scope, small)
            await self._app(scope, replay(small, receive), send)

    async def _pass_large(self, body: bytes, scope: Scope, receive: Receive, send: Send, *, is_compressed: bool = False) -> None:
        if not is_compressed and has_too_many_nodes(body):
            await build_error(scope, 413, "BadRequestException", TOO_MANY)(scope, receive, send)
            return
        if not await self._acquire_large_slot():
            await build_error(scope, 503, "ServiceUnavailableException", BUSY, {"Retry-After": "1", **CLOSE})(scope, receive, send)
            return
        try:
            await self._pass_in_slot(body, scope, receive, send, is_compressed=is_compressed)
        finally:
            self._unanswered_count -= 1

    async def _acquire_large_slot(self) -> bool:
        """Wait for a slot for a large body. False if none is free in time, or too many responses are still unread."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._large.acquire()
        except TimeoutError:
            return False
        if self._unanswered_count >= MAX_UNANSWERED_LARGE:
            self._large.release()
            return False
        self._unanswered_count += 1
        return True

    async def _pass_in_slot(self, body: bytes, scope: Scope, receive: Receive, send: Send, *, is_compressed: bool) -> None:
        # Release the slot once, when the response begins: a client may read the response slowly.
        with ExitStack() as slot:
            slot.callback(self._large.release)

            async def send_on(message: Message) -> None:
                slot.close()
                await send(message)

            if is_compressed:
                await self._unpack_large(body, scope, receive, send_on)
            else:
                await self._app(scope, replay(body, receive), send_on)

    async def _unpack_large(self, compressed: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await asyncio.to_thread(unpack, compressed, MAX_BODY_BYTES)
        except zlib.error:
            await build_error(scope, 400, "BadRequestException", NOT_GZIP)(scope, receive, send)
            return
        if body is None or has_too_many_nodes(body):
            await build_error(scope, 413, "BadRequestException", TOO_LARGE if body is None else TOO_MANY)(scope, receive, send)
        else:
            set_unpacked_headers(scope, body)
            await self._app(scope, replay(body, receive), send)


def list_codings(scope: Scope) -> list[str]:
    """Return the body's content codings in order, without `identity`."""
    encodings = b",".join(value for name, value in scope["headers"] if name == b"content-encoding").decode("latin-1")
    return [coding for text in encodings.split(",") if (coding := text.strip().lower()) not in ("", "identity")]


def unpack(body: bytes, most_bytes: int) -> bytes | None:
    """Return the decompressed body, None if it is longer than `most_bytes`. It never decompresses more than that.

    Raises: zlib.error: the body is not gzip, is truncated, or has trailing bytes
    """
    if not body:
        return body
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    unpacked = unpacking.decompress(body, most_bytes + 1)
    if len(unpacked) > most_bytes:
        return None
    if not unpacking.eof or unpacking.unused_data:
        raise zlib.error(NOT_GZIP)
    return unpacked


def set_unpacked_headers(scope: Scope, body: bytes) -> None:
    """Replace the request's content headers by those of the decompressed body."""
    others = [(name, value) for name, value in scope["headers"] if name not in (b"content-encoding", b"content-length")]
    scope["headers"] = [*others, (b"content-length", b"%d" % len(body))]


def get_content_length(scope: Scope) -> int:
    """Return the Content-Length, 0 if it is missing or not a number."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    return max((int(value) for value in lengths if value.isdigit() and len(value) < 20), default=0)


def has_too_many_nodes(body: bytes) -> bool:
    """True if decoding the JSON would take gigabytes: an empty array has two bytes as text, and 56 in memory."""
    return body.count(b"[") + body.count(b"{") > MAX_NODES or body.count(b",") > MAX_ITEMS


async def receive_body(receive: Receive) -> bytes | None:
    """Return the whole body, or its beginning if it exceeds MAX_BODY_BYTES; None if the client has disconnected."""
    parts: list[bytes] = []
    received_bytes, is_more = 0, True
    while is_more and received_bytes <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        received_bytes += len(parts[-1])
        is_more = message.get("more_body", False)
    return b"".join(parts)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body first, then the client's further messages."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again
