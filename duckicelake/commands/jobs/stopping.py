"""Ctrl-C while a job runs once: it ends before its next step, and nothing of it is seen."""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Event, Thread
from types import FrameType

from duckicelake.errors import CatalogError, CommitStateUnknown
from duckicelake.pipeline.ingest.job import PUBLISHED, SPARK_FAILURES, Desk

INTERRUPTED = 130
"""The status for the shell, as of every program that Ctrl-C ends."""


class Interrupted(CatalogError):
    """Somebody asked for the end."""

    def __init__(self) -> None:
        super().__init__("stopped by Ctrl-C; nothing was taken")


@contextmanager
def stopping_between_steps(desk: Desk) -> Generator[Desk]:
    """A desk whose run Ctrl-C ends before its next step, and what Spark is doing at once.

    Spark's own handler asks Java from within whatever Java was asked for, which breaks both with traces; here another thread asks.
    Raises: Interrupted: it was ended, and nothing was published
    """
    stopped = Event()

    def hear(number: int, frame: FrameType | None) -> None:
        stopped.set()
        Thread(target=_cancel, args=(desk,), daemon=True).start()

    def tell(step: str) -> None:
        # What is published is done, whoever wants an end.
        if stopped.is_set() and step != PUBLISHED:
            raise Interrupted
        desk.tell(step)

    with _hearing(hear):
        try:
            yield replace(desk, tell=tell)
        except CommitStateUnknown:
            raise
        except CatalogError as error:
            if stopped.is_set():
                raise Interrupted from error
            raise


def _cancel(desk: Desk) -> None:
    with suppress(*SPARK_FAILURES):
        desk.spark.sparkContext.cancelAllJobs()


@contextmanager
def _hearing(hear: Callable[[int, FrameType | None], None]) -> Generator[None]:
    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
