"""Java programs that suites fetch with Maven, compile, start, and command line by line."""

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from duckdb import DuckDBPyConnection

from tests.outside.results import Result
from tests.rck.jars import RESOLVER

ANSWER_SECONDS = 180
JAVA = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ProgramRefused(Exception):
    """A program did not carry out a command, or what it was to bring about did not come in time."""


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A Java program in a process of its own. Each line of its input is a command, a tab and a text; it answers with lines of a word
    (`row`, `done` or `error`), a tab and JSON.
    """

    process: "subprocess.Popen[str]"
    lines: "SimpleQueue[str]" = field(default_factory=SimpleQueue)

    def ask(self, command: str, text: str) -> list[Any]:
        """Run a command; the rows that it prints. Raises: ProgramRefused: the program's message, or no answer in time."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\t{text}".replace("\n", "\\n") + "\n")
        self.process.stdin.flush()
        rows: list[Any] = []
        for word, answer in self._read():
            if word == "error":
                raise ProgramRefused(answer)
            if word == "done":
                return rows
            rows.append(answer)
        raise ProgramRefused(f"the program ended or was silent for {ANSWER_SECONDS} seconds, after {len(rows)} rows")

    def _read(self) -> Iterator[tuple[str, Any]]:
        """Yield words and answers until the process ends or is silent."""
        while line := self.wait_for_line():
            word, middle, answer = line.partition("\t")
            if middle and word in {"row", "done", "error"}:
                yield word, json.loads(answer)

    def wait_for_line(self) -> str:
        """Return the next line; an empty one at the end and when none comes in time."""
        try:
            return self.lines.get(timeout=ANSWER_SECONDS)
        except Empty:
            return ""

    def listen(self) -> None:
        """Put each line of the process into the queue, and an empty one at the end; this runs on a thread of its own."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")


def fetch_program(cache: Path, name: str, sources: Path, versions: Mapping[str, str]) -> Path:
    """Return the folder with the jars of a program's pom.xml and its classes; the first time Maven fetches them."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources.iterdir()))).hexdigest()[:12]
    folder = cache / f"{name}-{versions[name]}-{digest}"
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    options = [*(f"-D{of}={version}" for of, version in versions.items()), f"-DoutputDirectory={folder / 'jars'}", "-DincludeScope=runtime"]
    subprocess.run(["mvn", "--batch-mode", "--quiet", "--strict-checksums", "-f", sources / "pom.xml", RESOLVER, *options], check=True)
    classes = ["-d", folder / "classes", "-cp", f"{folder / 'jars'}/*"]
    subprocess.run(["javac", "-nowarn", *classes, *sorted(sources.glob("*.java"))], check=True)
    (folder / "complete").touch()
    return folder


def list_classpath(folder: Path) -> list[str]:
    """Return the options of Java that name a fetched program's classes and jars."""
    return ["-cp", f"{folder / 'classes'}:{folder / 'jars'}/*"]


@contextmanager
def start_program(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> Generator[JavaProgram]:
    """Start a program, whose errors go into a file. It is killed at the end."""
    with log.open("w") as errors:
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, stderr=errors, text=True, bufsize=1)
    try:
        program = JavaProgram(process)
        Thread(target=program.listen, daemon=True).start()
        yield program
    finally:
        process.kill()
        process.wait()


def judge_check(check: Callable[[], None]) -> Result:
    """Return what became of a check."""
    try:
        check()
    except (ProgramRefused, AssertionError) as error:
        return Result("failed", f"{type(error).__name__}: {error}"[:3000])
    return Result("passed")


def count_rows(conn: DuckDBPyConnection, table: str) -> int:
    """Return the number of a table's rows."""
    found = conn.execute(f"SELECT count(*) FROM {table}").fetchone()
    return 0 if found is None else int(found[0])


def wait_until(holds: Callable[[], bool], seconds: float = ANSWER_SECONDS) -> None:
    """Wait until a condition holds. Raises: ProgramRefused: it does not within the time of an answer"""
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise ProgramRefused(f"nothing came within {seconds} seconds")
        time.sleep(0.05)
