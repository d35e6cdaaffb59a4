"""Waiting for a condition instead of for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_for(find: Callable[[], Found | None], what: str, timeout_seconds: float = 30.0) -> Found:
    """Return what `find` returns as soon as it is neither None nor False; fail after the time, saying what was awaited."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        found = find()
        if found is not None and found is not False:
            return found
        time.sleep(0.02)
    raise AssertionError(f"Waited {timeout_seconds:.0f} s in vain for {what}")
