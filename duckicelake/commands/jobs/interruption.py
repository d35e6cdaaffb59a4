"""Ctrl-C and SIGTERM while a job runs once: it ends before its next step, and what was done until then is told."""

import signal
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from duckicelake.commands.signals import handling, stopping_on_signals
from duckicelake.errors import CatalogError, CommitStateUnknown
from duckicelake.pipeline.ingest.report import PUBLISHED
from duckicelake.pipeline.jars import Progress
from duckicelake.pipeline.reports import Interrupted

INTERRUPTED = 130
"""The status for the shell, as of every program that Ctrl-C ends."""
STOPS: Mapping[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
"""What ends a run, by what people call it."""


@dataclass(slots=True)
class Stop:
    """Who asked for the end; nobody: empty.

    `has_skipped_step`: a step was not begun for it. `has_cancelled`: Spark was at work, and was told to end that.
    """

    by: str = ""
    has_skipped_step: bool = False
    has_cancelled: bool = False

    def has_interrupted(self, status: int) -> bool:
        """Whether it kept a run from its end; `status` is how that ended. What Spark did in time is done."""
        return self.has_skipped_step or (self.has_cancelled and bool(status))

    def interrupting(self, show_step: Progress) -> Progress:
        """What hears of each step, and raises Interrupted before the next one when the end is asked for."""

        def checked(step: str) -> None:
            # What is published is done, whoever wants an end.
            if self.by and step != PUBLISHED:
                self.has_skipped_step = True
                raise Interrupted(f"stopped by {self.by} before: {step}")
            show_step(step)

        return checked

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; a second Ctrl-C waits for no step."""
        if self.by and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        self.by = self.by or STOPS[number]


@contextmanager
def hearing_a_stop() -> Generator[Stop]:
    """Inside, a signal to end is noted, and ends nothing by itself."""
    stop = Stop()
    with handling(dict.fromkeys(STOPS, stop.hear)):
        yield stop


@contextmanager
def serving_until(stop: Stop) -> Generator[None]:
    """Inside, a signal to end is the end of the program through every `finally`, and so is one that was noted before."""
    with stopping_on_signals():
        if stop.by:
            raise SystemExit(0)
        yield


@contextmanager
def taking_all_or_nothing(stop: Stop) -> Generator[None]:
    """Inside, what fails because the end is asked for is told so: Spark's jobs are cancelled then.

    Raises: Interrupted: it was ended, and nothing was published
    """
    try:
        yield
    except CommitStateUnknown:
        raise
    except CatalogError as error:
        if stop.has_interrupted(1):
            raise Interrupted(f"stopped by {stop.by}; nothing was taken") from error
        raise
