"""Objects on their way to the store: written once, in parallel, never held for long."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from duckicelake.store.objects import Objects

SHIP_BYTES = 32 * 1024 * 1024
SHIP_COUNT = 512


@dataclass(slots=True)
class Outbox:
    """Collects objects and writes those the store does not have yet, one box after the other beside its caller's work.

    `known_uris` grows with every box that has arrived.
    """

    objects: Objects
    known_uris: set[str]
    waiting: dict[str, bytes] = field(default_factory=dict[str, bytes])
    waiting_bytes: int = 0
    sent: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _arrival: "Future[set[str]] | None" = None

    def add(self, uri: str, content: bytes) -> None:
        """Take an object; a full box is sent off, once the one before has arrived."""
        if uri in self.known_uris or uri in self.waiting or uri in self.sent:
            return
        self.waiting[uri] = content
        self.waiting_bytes += len(content)
        if self.waiting_bytes >= SHIP_BYTES or len(self.waiting) >= SHIP_COUNT:
            self._send()

    def ship(self) -> None:
        """Write everything that is waiting; afterwards all of it is in the store."""
        self._await()
        if self.waiting:
            self.objects.put_many_new(list(self.waiting.items()))
            self.known_uris.update(self.waiting)
            self.waiting, self.waiting_bytes = {}, 0

    def _send(self) -> None:
        self._await()
        if not self.waiting:
            return
        self.sent, self.waiting, self.waiting_bytes = self.waiting, {}, 0
        with_one_thread = ThreadPoolExecutor(1, "outbox")
        self._arrival = with_one_thread.submit(self.objects.put_many_new, list(self.sent.items()))
        with_one_thread.shutdown(wait=False)

    def _await(self) -> None:
        """Wait for the box on its way.

        Raises: what `Objects.put_many_new` raises
        """
        if self._arrival is not None:
            arrival, self._arrival = self._arrival, None
            arrival.result()
            self.known_uris.update(self.sent)
            self.sent = {}
