"""Objects on their way to the store: written once, in parallel, never held for long."""

import hashlib
from dataclasses import dataclass, field

from duckicelake.store.objects import Objects

SHIP_BYTES = 32 * 1024 * 1024
SHIP_COUNT = 512


def format_digest(content: bytes) -> str:
    """Return what names an object after its bytes."""
    return hashlib.sha256(content).hexdigest()[:32]


@dataclass(slots=True)
class Outbox:
    """Collects objects and writes those the store does not have yet. `known_uris` grows with every shipment."""

    objects: Objects
    known_uris: set[str]
    waiting: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    waiting_bytes: int = 0

    def add(self, uri: str, content: bytes) -> None:
        """Take an object; full boxes are shipped at once."""
        if uri in self.known_uris:
            return
        self.waiting.append((uri, content))
        self.waiting_bytes += len(content)
        if self.waiting_bytes >= SHIP_BYTES or len(self.waiting) >= SHIP_COUNT:
            self.ship()

    def ship(self) -> None:
        """Write everything that is waiting; afterwards all of it is in the store."""
        self.objects.put_many_new(self.waiting)
        self.known_uris.update(uri for uri, _ in self.waiting)
        self.waiting, self.waiting_bytes = [], 0
