"""Handling of stop signals: end a command through its `finally` blocks, or only record the signal. Used on the main thread."""

import os
import select
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], Any] | int | None
"""A handler as `signal.signal` takes and returns it."""


@contextmanager
def handling(handlers: Mapping[int, Handler], *, for_good: bool = False) -> Generator[None]:
    """Set signal handlers within the block. `for_good`: do not restore the former handler of a signal that has another one by then."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if not for_good or signal.getsignal(number) == handlers[number]:
                signal.signal(number, handler)


@contextmanager
def stopping_on_signals() -> Generator[None]:
    """Within the block, the first stop signal ends the program through every `finally` block. Further signals are ignored."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        _ignore_stops()
        raise SystemExit(0)

    with handling(dict.fromkeys(STOP_SIGNALS, stop)):
        yield


@contextmanager
def hearing_stops() -> Generator[Callable[[float], bool]]:
    """Within the block, a stop signal is only recorded. Yield a function that waits some seconds for one and returns True if one arrived.

    Further signals are ignored, also in an enclosing `stopping_on_signals`.
    """
    reading, writing = os.pipe()

    def hear(number: int, frame: FrameType | None) -> None:
        _ignore_stops()
        os.write(writing, b".")

    try:
        with handling(dict.fromkeys(STOP_SIGNALS, hear), for_good=True):
            yield lambda seconds: bool(select.select([reading], [], [], seconds)[0])
    finally:
        os.close(reading)
        os.close(writing)


def _ignore_stops() -> None:
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
