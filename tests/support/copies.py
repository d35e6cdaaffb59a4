"""Commands that begin at once: copies of a process that has imported the package, one such process for each process of tests.

`python -m duckicelake.cli` imports for one to two seconds of CPU time before it does anything, and the tests run hundreds of commands.
The process that is copied has neither threads nor connections. A copy has arguments, environment, folder, and standard input and outputs
of its own, and ends as an interpreter does: with its exit functions, and with the status of the command.

Run as a program, this module is the process that is copied; its standard input is a socket, which brings one command a message.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import duckdb

MESSAGE_BYTES_MAX = 1 << 20
CLI = "duckicelake.cli"
PACKAGES = ("duckicelake.commands", "duckicelake.pipeline")
"""What commands import when they run."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Environment in which numpy and PyArrow start no threads when they are imported."""
Streams = tuple[int, int, int]
"""Descriptors of standard input, output and error."""
NUMBER = struct.Struct("<i")


class Copies:
    """The process that is copied, seen from a test. Any thread may use it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES_MAX)
        with theirs:
            self._process = subprocess.Popen([sys.executable, "-m", __name__], env={**environment, **ONE_THREAD}, stdin=theirs)
        self._requests, self._lock = ours, Lock()

    def run(self, folder: Path, arguments: Sequence[str], environment: Mapping[str, str], streams: Streams, seconds: float) -> int:
        """Run a command with these streams to its end, and return its status: that of `subprocess`, negative for a signal.

        Raises: subprocess.TimeoutExpired: it takes longer than `seconds`, and was ended
        """
        message = json.dumps({"folder": str(folder), "arguments": arguments, "environment": dict(environment)}).encode()
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with answers:
            with theirs, self._lock:
                socket.send_fds(self._requests, [message], [*streams, theirs.fileno()])
            answers.settimeout(seconds)
            pid = self._receive(answers)
            try:
                return self._receive(answers)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(arguments, seconds) from None

    def _receive(self, answers: socket.socket) -> int:
        got = answers.recv(NUMBER.size, socket.MSG_WAITALL)
        assert len(got) == NUMBER.size, f"the process that is copied ended with {self._process.poll()}"
        return NUMBER.unpack(got)[0]


_opened: list[Copies] = []


def open_copies(environment: Mapping[str, str]) -> Copies:
    """Return the process that this process of tests copies. It ends with this process, when the socket closes."""
    if not _opened:
        _opened.append(Copies(environment))
    return _opened[0]


def serve_copies(requests: socket.socket) -> None:
    """Run each command that comes in a copy of this process, until nobody can send more. Returns in the copies."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES_MAX, 4)
        if not message:
            os._exit(0)
        # A copy of its own waits for each command, so that this process stays free for the next one.
        if os.fork() == 0:
            requests.close()
            with socket.socket(fileno=descriptors.pop()) as answers:
                if _fork_command(answers):
                    break
        for descriptor in descriptors:
            os.close(descriptor)
    _become(json.loads(message), descriptors)


def _fork_command(answers: socket.socket) -> bool:
    """True in the copy that shall run the command. The other waits for it, tells its process id and its status, and ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        return True
    with contextlib.suppress(OSError):
        answers.send(NUMBER.pack(pid))
        answers.send(NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]


def _import_all() -> None:
    importlib.import_module(CLI)
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(found.name)


def main() -> None:
    """Be the process that is copied; in each copy, run the command."""
    _import_all()
    duckdb.execute("SET threads = 1")
    assert len(os.listdir("/proc/self/task")) == 1, "a copy has no other thread than the one that makes it"
    # Else the first collection of garbage would copy all memory.
    gc.collect()
    gc.freeze()
    serve_copies(socket.socket(fileno=os.dup(0)))
    importlib.import_module(CLI).main()


if __name__ == "__main__":
    main()
