"""Stop signals end a command through its `finally`s, once, or are heard of when it is time."""

import os
import select
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], Any] | int | None
"""What Python's `signal` takes and gives back."""


@contextmanager
def handling(handlers: Mapping[int, Handler], *, for_good: bool = False) -> Generator[None]:
    """Inside, signals are handled so; afterwards as they were before. `for_good`: unless somebody has put up another handler by then."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if not for_good or signal.getsignal(number) == handlers[number]:
                signal.signal(number, handler)


@contextmanager
def stopping_on_signals() -> Generator[None]:
    """Inside, the first stop signal ends the program through every `finally`; further ones cannot cut the stopping short."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        _ignore_stops()
        raise SystemExit(0)

    with handling(dict.fromkeys(STOP_SIGNALS, stop)):
        yield


@contextmanager
def hearing_stops() -> Generator[Callable[[float], bool]]:
    """Inside, a stop signal ends nothing: the call waits that many seconds for one, and says whether there has been one.

    Further ones cannot cut short what comes afterwards, within `stopping_on_signals`.
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
