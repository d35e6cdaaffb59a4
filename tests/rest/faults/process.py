"""A server in a process of its own, whose kernel limits a test may change: `python -m tests.rest.faults.process`, settings on stdin."""

import json
import resource
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from duckicelake.config import Settings
from tests.rest.serving import Server, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.shared_stack import ROOT

UNLIMITED = resource.RLIM_INFINITY


@dataclass(frozen=True, slots=True)
class Process:
    """The server, and its process."""

    server: Server
    pid: int

    def fill_disk(self, left_bytes: int = 0) -> None:
        """Let no file that it writes get larger than this: the kernel then refuses to write, as on a full disk."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (left_bytes, UNLIMITED))

    def empty_disk(self) -> None:
        """Let it write again."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))


@contextmanager
def serve_apart(lake: FreshLake) -> Generator[Process]:
    """A lake in a local folder, served by another process until the end of the block."""
    settings = make_settings(lake, s3_endpoint=None, s3_access_key_id=None, s3_secret_access_key=None)
    told = json.dumps({"warehouse": settings.warehouse, "postgres_dsn": lake.dsn, "metadata_schema": lake.metadata_schema})
    command = [sys.executable, "-m", "tests.rest.faults.process"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(told + "\n")
        process.stdin.flush()
        try:
            yield Process(Server(int(process.stdout.readline())), process.pid)
        finally:
            process.stdin.close()


if __name__ == "__main__":
    with serve(Settings(**json.loads(sys.stdin.readline()))) as running:
        sys.stdout.write(f"{running.port}\n")
        sys.stdout.flush()
        sys.stdin.read()
