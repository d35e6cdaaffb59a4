"""Proofs of secrets, which are slow on purpose: a few at a time, in threads of their own.

Law: strangers who show wrong secrets keep nobody else waiting but those who show one for the first time.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from duckicelake.errors import TooManyRequests

Answer = TypeVar("Answer")

MAX_CONCURRENT = 2
MAX_QUEUED, MAX_QUEUED_PER_ADDRESS = 256, 64
"""How many proofs wait, and how many that come from one address."""


class SecretVerification:
    """Runs proofs beside the threads that answer requests; asked from the event loop only."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT, "proving")
        self._waiting: Counter[str] = Counter()

    async def run(self, peer: str, verify: Callable[[], Answer]) -> Answer:
        """Return what a proof returns, when its turn has come. Raises: TooManyRequests: too many wait already; and what it raises."""
        if self._waiting.total() >= MAX_QUEUED or self._waiting[peer] >= MAX_QUEUED_PER_ADDRESS:
            raise TooManyRequests("Too many show a secret at the same time; nothing was done. Come again.")
        self._waiting[peer] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, verify)
        finally:
            self._waiting -= Counter({peer: 1})
