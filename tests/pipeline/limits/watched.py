"""A job's command with an eye on what it takes of the machine, or with fewer rights than ours."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import psutil

from tests.support.commands import COMMAND, environment

MEMORY = "1g"
LOOK_SECONDS = 0.2
SECONDS = 3000
_DROP = 24
_OVERRIDES = (1, 2)
"""PR_CAPBSET_DROP, and the rights by which root reads what its owner may not (Linux, capabilities(7))."""


@dataclass(slots=True)
class Watched:
    """How a command ended; the most memory that its Python and its Java had, and the CPU time of both."""

    status: int = -1
    out: str = ""
    err: str = ""
    python_bytes: int = 0
    java_bytes: int = 0
    cpu_seconds: float = 0.0

    def describe(self) -> str:
        """The figures, in a line."""
        return f"Python {self.python_bytes >> 20} MiB, Java {self.java_bytes >> 20} MiB, {self.cpu_seconds:.0f} CPU seconds"

    def look(self, process: psutil.Process) -> None:
        """Note what the command and those that it started have now."""
        cpu_seconds = 0.0
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                # A child that Java has forked and that is nothing of its own yet has its memory, and the name of a thread.
                program, size, times = Path(one.exe()).name, one.memory_info().rss, one.cpu_times()
                cpu_seconds += times.user + times.system
                if program == "java":
                    self.java_bytes = max(self.java_bytes, size)
                else:
                    self.python_bytes = max(self.python_bytes, size)
        self.cpu_seconds = max(self.cpu_seconds, cpu_seconds)


def watch(folder: Path, *arguments: str, settings: Mapping[str, str], before: Callable[[], None] | None = None) -> Watched:
    """Run a job to its end, with so much memory for Java as it is asked to take. `before` is done in its process first."""
    done, is_over = Watched(), Event()
    command = [*COMMAND, "pipeline", *arguments, "--memory", MEMORY]
    out, err = folder / "out.txt", folder / "err.txt"
    with out.open("w") as told, err.open("w") as complained:
        running = subprocess.Popen(
            command, cwd=folder, env=environment(settings), stdout=told, stderr=complained, stdin=subprocess.DEVNULL, preexec_fn=before
        )

        def look() -> None:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(running.pid)
                while not is_over.wait(LOOK_SECONDS):
                    done.look(process)

        looking = Thread(target=look)
        looking.start()
        try:
            done.status = running.wait(SECONDS)
        finally:
            running.kill()
            is_over.set()
            looking.join()
    done.out, done.err = out.read_text(), err.read_text()
    return done


def obey_permissions() -> None:
    """Have root refused what is not for it to read, as others are."""
    if os.geteuid() == 0:
        for right in _OVERRIDES:
            ctypes.CDLL(None).prctl(_DROP, right, 0, 0, 0)
