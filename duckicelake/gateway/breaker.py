"""The circuit breaker of a route: after several failures in a row, requests are refused at once for a while. Pure but for its counts."""

from dataclasses import dataclass
from typing import Literal

OPEN_AFTER = 5
OPEN_S = 10.0

State = Literal["closed", "open", "probing"]


@dataclass(slots=True)
class Breaker:
    """The failures of one route in a row, and until when requests are refused. Used on the event loop only."""

    failure_count: int = 0
    open_until_s: float = 0.0
    is_probing: bool = False

    def get_state(self, now_s: float) -> State:
        """Return `open` while requests are refused, `probing` when the next one decides."""
        if self.failure_count < OPEN_AFTER:
            return "closed"
        return "open" if now_s < self.open_until_s or self.is_probing else "probing"

    def retry_after_s(self, now_s: float) -> float:
        """Return how long requests are refused."""
        return max(self.open_until_s - now_s, 1.0)

    def begin_probe(self) -> None:
        """Let one request probe the upstream; others are refused until it ends."""
        self.is_probing = True

    def end_probe(self) -> None:
        """Let another request probe, if this one found out nothing."""
        self.is_probing = False

    def count_failure(self, now_s: float) -> None:
        """Count an upstream that could not be reached, or did not answer."""
        self.failure_count += 1
        self.is_probing = False
        if self.failure_count >= OPEN_AFTER:
            self.open_until_s = now_s + OPEN_S

    def count_success(self) -> None:
        """Count an answer, with any status."""
        self.failure_count = 0
        self.is_probing = False
