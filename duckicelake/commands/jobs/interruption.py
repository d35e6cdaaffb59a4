"""Ctrl-C and SIGTERM during one run of a job: the run ends before its next step, and its report lists what is done.

Signals arrive on the main thread. `session.cancelled_by_stops` cancels Spark's jobs from another thread.
"""

import signal
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from duckicelake.commands.signals import handling, stopping_on_signals
from duckicelake.errors import CatalogError, CommitStateUnknown
from duckicelake.pipeline.common.reports import PUBLISHED, Interrupted, Progress

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ends."""
STOPS: Mapping[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
"""The signals that end a run, with their names in messages."""


@dataclass(slots=True)
class Stop:
    """The request to end a run. `by`: the signal's name, empty if none has arrived.

    `has_skipped_step`: a step was not started because of it. `has_cancelled`: running Spark jobs were cancelled.
    """

    by: str = ""
    has_skipped_step: bool = False
    has_cancelled: bool = False

    def has_interrupted(self, status: int) -> bool:
        """True if the run is incomplete because of the signal. A run with status 0 whose Spark jobs had ended in time is complete."""
        return self.has_skipped_step or (self.has_cancelled and bool(status))

    def interrupting(self, show_step: Progress) -> Progress:
        """Return a progress function that raises Interrupted before the next step after a signal."""

        def checked(step: str) -> None:
            # After the publication the run is complete, so a signal changes nothing.
            if self.by and step != PUBLISHED:
                self.has_skipped_step = True
                raise Interrupted(f"stopped by {self.by} before: {step}")
            show_step(step)

        return checked

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Record a signal; a second Ctrl-C interrupts at once."""
        if self.by and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        self.by = self.by or STOPS[number]


@contextmanager
def hearing_a_stop() -> Generator[Stop]:
    """Within the block, a signal is only recorded in the yielded Stop."""
    stop = Stop()
    with handling(dict.fromkeys(STOPS, stop.hear)):
        yield stop


@contextmanager
def serving_until(stop: Stop) -> Generator[None]:
    """Within the block, a signal ends the program through every `finally` block, and so does a signal that was recorded before."""
    with stopping_on_signals():
        if stop.by:
            raise SystemExit(0)
        yield


@contextmanager
def taking_all_or_nothing(stop: Stop) -> Generator[None]:
    """Within the block, turn an error that a cancelled Spark job causes into Interrupted.

    Raises: Interrupted: a signal ended the run, and nothing was committed
    """
    try:
        yield
    except CommitStateUnknown:
        raise
    except CatalogError as error:
        if stop.has_interrupted(1):
            raise Interrupted(f"stopped by {stop.by}; nothing was taken") from error
        raise
