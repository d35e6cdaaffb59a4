"""Answers side by side: the same rows, in any order, or how many differ."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from duckdb import DuckDBPyConnection

from demo.questions import Question
from demo.read import Reader


@dataclass(frozen=True, slots=True)
class Answer:
    """How one reader answered; `problem` None means as DuckDB."""

    reader: str
    seconds: float
    problem: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One question, DuckDB's number of rows, and every reader's answer, DuckDB's first."""

    question: Question
    row_count: int
    answers: tuple[Answer, ...]

    @property
    def is_same(self) -> bool:
        """Whether all agree."""
        return all(answer.problem is None for answer in self.answers)


def compare(judge: DuckDBPyConnection, question: Question, readers: Sequence[Reader]) -> Comparison:
    """Ask every reader; the first one's answer is the truth."""
    first, *others = readers
    started = time.perf_counter()
    truth = first.ask(question)
    answers = [Answer(first.name, time.perf_counter() - started, None)]
    for reader in others:
        started = time.perf_counter()
        try:
            found = reader.ask(question)
        except Exception as error:  # noqa: BLE001  whatever a foreign client raises is what the report is for
            answers.append(Answer(reader.name, time.perf_counter() - started, f"{type(error).__name__}: {error}"))
            continue
        answers.append(Answer(reader.name, time.perf_counter() - started, find_difference(judge, truth, found)))
    return Comparison(question, len(truth), tuple(answers))


def find_difference(judge: DuckDBPyConnection, truth: pa.Table, found: pa.Table) -> str | None:
    """Say how the rows found differ from the true ones as multisets; None when they do not."""
    if found.column_names != truth.column_names:
        return f"columns {', '.join(found.column_names)} instead of {', '.join(truth.column_names)}"
    judge.register("truth", truth)
    judge.register("found", found)
    try:
        missing, extra = (
            len(judge.execute(f"(FROM {left}) EXCEPT ALL (FROM {right})").to_arrow_table())
            for left, right in (("truth", "found"), ("found", "truth"))
        )
    finally:
        judge.unregister("truth")
        judge.unregister("found")
    return None if missing == extra == 0 else f"{missing} of {len(truth)} rows missing, {extra} too many"
