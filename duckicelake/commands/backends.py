"""`duckicelake backends up|down|run`: the embedded Postgres and S3 without the catalog, for work on it."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from duckicelake.backends.home import BackendError, Home, find_holder, open_home
from duckicelake.backends.processes import read_log_tail
from duckicelake.backends.stack import Report, start_stack
from duckicelake.commands.embedded import is_embedded, join_home, plan_stack
from duckicelake.commands.prepare import prepare_lake
from duckicelake.config import Settings, SettingsError

PURPOSE = "backends"
READY_LINE = b"ready\n"
STOP_SECONDS = 60.0


def run_backends(settings: Settings, report: Report) -> None:
    """Run the stack in the foreground until a stop signal comes (see `stopping_on_signals`)."""
    stack = start_stack(settings.home, plan_stack(settings, PURPOSE), report)
    try:
        for lake in join_home(settings, stack.home).lakes():
            prepare_lake(lake, stack.home.make_folder("extensions"), report)
        sys.stdout.buffer.write(READY_LINE)
        sys.stdout.buffer.flush()
        threading.Event().wait()
    finally:
        stack.stop()


def start_backends(settings: Settings, arguments: Sequence[str]) -> int:
    """Start the stack in the background and return the pid of the process that keeps it; it outlives this one.

    Raises: BackendError: it does not start. SettingsError: these settings embed nothing
    """
    if not is_embedded(settings):
        raise SettingsError("These settings use servers of yours; there is nothing to start.")
    home = open_home(settings.home)
    holder = find_holder(home)
    if holder is not None:
        return holder[0]
    log_path = home.make_folder("log") / "backends.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "duckicelake.cli", "backends", "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as lines:
        if lines.readline() != READY_LINE:
            process.wait()
            raise BackendError(f"The embedded stack did not start:\n{read_log_tail(log_path)}")
    return process.pid


def stop_backends(home: Home) -> bool:
    """Stop what `backends up` started and return when it is gone; say whether anything ran.

    Raises: BackendError: the home is held by another command, or the stack does not stop
    """
    holder = find_holder(home)
    if holder is None:
        return False
    pid, purpose = holder
    if purpose != PURPOSE:
        raise BackendError(f"The home {home.path} is in use by `duckicelake {purpose}` (pid {pid}); stop that one.")
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended, _, _ = select.select([process], [], [], STOP_SECONDS)
    finally:
        os.close(process)
    if not ended:
        raise BackendError(f"The embedded stack (pid {pid}) did not stop within {STOP_SECONDS:.0f} s.")
    return True
