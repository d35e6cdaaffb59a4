"""Spark as it is stopped: a session that says which jobs it has, and notes what is cancelled."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class BusySpark:
    """A session, its context and what tells of its jobs, all in one."""

    jobs: Callable[[], list[int]]
    cancelled: Event = field(default_factory=Event)

    @property
    def sparkContext(self) -> "BusySpark":
        """What is told to cancel."""
        return self

    def statusTracker(self) -> "BusySpark":
        """What is asked for jobs."""
        return self

    def getActiveJobsIds(self) -> list[int]:
        """The jobs."""
        return self.jobs()

    def cancelAllJobs(self) -> None:
        """Note it."""
        self.cancelled.set()

    def cancelJobsWithTag(self, tag: str) -> None:
        """There are none."""


def opening(spark: BusySpark) -> AbstractContextManager[SparkSession]:
    """It, in place of a session."""
    session: Any = spark
    return nullcontext(session)
