"""Stop signals end a command through its `finally`s, once."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def stopping_on_signals() -> Generator[None]:
    """Inside, the first stop signal ends the program through every `finally`; further ones cannot cut the stopping short."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(0)

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
