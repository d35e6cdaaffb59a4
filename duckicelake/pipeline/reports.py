"""What the reports of jobs that go from table to table have in common: how things end, and what that is to the shell and to machines."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How a step, a table or a run ended."""

    planned = "planned"
    done = "done"
    there = "already-there"
    nothing = "nothing-to-do"
    skipped = "skipped"
    failed = "failed"


def find_worst(verdicts: Iterable[Verdict], message: str) -> Verdict:
    """The verdict of a run; `message` is set when it could not even be begun."""
    found = set(verdicts)
    if message or Verdict.failed in found:
        return Verdict.failed
    return next((one for one in (Verdict.planned, Verdict.done) if one in found), Verdict.nothing)


def to_status(verdict: Verdict) -> int:
    """The status for the shell: 0 done, or nothing to do; 1 something could not be done."""
    return int(verdict is Verdict.failed)


def format_report(job: str, status: str, report: Any) -> str:
    """A report, which is a dataclass, for machines."""
    fields: dict[str, Any] = {"job": job, "status": status, **asdict(report)}
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
