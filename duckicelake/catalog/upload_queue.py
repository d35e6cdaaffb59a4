"""Objects to be written: full batches are sent in a thread.

Up to about 32 MiB that only hidden snapshots reference stay in memory until something that clients see references them."""

from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from duckicelake.store.objects import Objects

FLUSH_BYTES = 32 * 1024 * 1024
FLUSH_COUNT = 512


@dataclass(frozen=True, slots=True)
class HeldObject:
    """An object that nothing names yet, and those of its kind that it names itself."""

    content: bytes
    names: Sequence[str] = ()


@dataclass(slots=True)
class UploadQueue:
    """Collects objects and writes those the store does not have yet, one batch after the other in a thread of its own.

    `known_uris` grows with every box that has arrived. `held` are objects that are made and named by nothing that clients see:
    they stay here until something does, because a clean-up would remove unreferenced objects from the store.
    """

    objects: Objects
    known_uris: set[str]
    waiting: dict[str, bytes] = field(default_factory=dict[str, bytes])
    waiting_bytes: int = 0
    sent: dict[str, bytes] = field(default_factory=dict[str, bytes])
    held: dict[str, HeldObject] = field(default_factory=dict[str, HeldObject])
    is_holding: bool = False
    held_bytes: int = 0
    _upload: "Future[set[str]] | None" = None

    def add(self, uri: str, content: bytes, names: Sequence[str] = ()) -> None:
        """Take an object; a full box is sent off, once the one before has arrived. `names` are of objects that go with it."""
        if uri in self.known_uris or uri in self.waiting or uri in self.sent:
            return
        if self.is_holding and self.held_bytes < FLUSH_BYTES:
            self.held.setdefault(uri, HeldObject(content, [name for name in names if name in self.held]))
            self.held_bytes += len(content)
            return
        self.waiting[uri] = content
        self.waiting_bytes += len(content)
        if self.waiting_bytes >= FLUSH_BYTES or len(self.waiting) >= FLUSH_COUNT:
            self._send()

    @contextmanager
    def holding(self, *, is_hidden: bool) -> Generator[None]:
        """Keep what is added meanwhile, if clients do not see what names it, as long as that is not too much to be kept."""
        self.is_holding = is_hidden
        try:
            yield
        finally:
            self.is_holding = False

    def release(self, uris: Iterable[str]) -> None:
        """Let go of those that were held, and of what they name, since something names them now."""
        if self.is_holding or not self.held:
            return
        for uri in uris:
            held = self.held.pop(uri, None)
            if held is not None:
                self.add(uri, held.content)
                self.release(held.names)

    def list_held(self, uris: Iterable[str]) -> dict[str, HeldObject]:
        """Return what is held under these URIs, and what that names."""
        found = {uri: self.held[uri] for uri in uris if uri in self.held}
        return found | {name: self.held[name] for held in found.values() for name in held.names if name in self.held}

    def flush(self) -> None:
        """Write everything that is waiting; afterwards all of it is in the store."""
        self._wait()
        if self.waiting:
            self.objects.put_many_new(list(self.waiting.items()))
            self.known_uris.update(self.waiting)
            self.waiting, self.waiting_bytes = {}, 0

    def _send(self) -> None:
        self._wait()
        if not self.waiting:
            return
        self.sent, self.waiting, self.waiting_bytes = self.waiting, {}, 0
        with_one_thread = ThreadPoolExecutor(1, "uploads")
        self._upload = with_one_thread.submit(self.objects.put_many_new, list(self.sent.items()))
        with_one_thread.shutdown(wait=False)

    def _wait(self) -> None:
        """Wait for the box on its way.

        Raises: what `Objects.put_many_new` raises
        """
        if self._upload is not None:
            arrival, self._upload = self._upload, None
            arrival.result()
            self.known_uris.update(self.sent)
            self.sent = {}
