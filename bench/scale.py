"""How much each benchmark does: enough for figures, or only enough to see that it works."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers of requests and items. Curves need three points or more to tell whether they are linear."""

    requests: int
    large_body_snapshots: int
    snapshots: tuple[int, ...]
    files: tuple[int, ...]
    later_snapshots: tuple[int, ...]
    later_inserts: int
    inlined_inserts: int


SMALL = Scale(400, 120, (1, 10, 40), (10, 100, 400), (5, 40), 3, 20)
USUAL = Scale(6000, 850, (1, 10, 100, 1000), (1000, 10_000, 100_000), (10, 100, 1000), 10, 1000)
FULL = Scale(20_000, 850, (1, 10, 100, 1000, 10_000), (1000, 10_000, 100_000, 1_000_000), (10, 100, 1000, 10_000), 20, 1000)
