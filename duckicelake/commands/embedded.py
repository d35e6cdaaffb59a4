"""The embedded Postgres and S3 of a command: settings completed with their addresses and keys, and `duckicelake backends up|down|run`.

The command line, `serve` and `management` call this on the main thread; what a command started is stopped at its end, except after
`backends up`. It reads the home's files of keys and ports, and `backends run` also prepares the lakes. `format_command` returns the command
line that messages recommend, on any thread.
"""

import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from duckicelake.commands.prepare import prepare_lake
from duckicelake.config import Settings, SettingsError, read_settings
from duckicelake.embedded.home import EmbeddedError, Home, find_holder, open_home, read_json, read_keys
from duckicelake.embedded.object_store import BUCKET, StoreAccess
from duckicelake.embedded.processes import read_log_tail
from duckicelake.embedded.stack import Report, StackOptions, build_access, start_stack

CHECKOUT = Path(__file__).parents[2]
WRAPPER = CHECKOUT / "scripts" / "duckicelake"


def format_command(*arguments: str) -> str:
    """Return a command line that works in a new shell in this folder: `scripts/duckicelake` of a checkout, else the installed command."""
    return " ".join((shlex.quote(_get_command()), *arguments))


def _get_command() -> str:
    if WRAPPER.is_file():
        return _shorten(WRAPPER)
    installed = Path(sys.executable).parent / "duckicelake"
    found = shutil.which("duckicelake")
    if found is not None and Path(found).resolve() == installed.resolve():
        return "duckicelake"
    return _shorten(installed)


def _shorten(path: Path) -> str:
    """Return the path relative to the working folder if it is below it, else unchanged."""
    below = os.path.relpath(path)
    return str(path) if below.startswith("..") else below


METADATA_SCHEMA = "lake"
DATA_PATH, ICEBERG_PATH = f"s3://{BUCKET}/data/", f"s3://{BUCKET}/iceberg/"


def plan_stack(settings: Settings, purpose: str) -> StackOptions:
    """Return the embedded servers that these settings need."""
    return StackOptions(
        purpose=purpose,
        postgres=settings.embedded_postgres,
        store=settings.store if settings.embedded_store else "none",
        postgres_port=settings.postgres_port,
        s3_port=settings.s3_port,
    )


def is_embedded(settings: Settings) -> bool:
    """True if the settings use an embedded Postgres or S3."""
    return settings.embedded_postgres or settings.embedded_store


def join_home(settings: Settings, home: Home) -> Settings:
    """Return the settings completed with the home's addresses and keys of the embedded servers, which need not run.

    Raises: EmbeddedError: nothing was ever started on this home
    """
    if not is_embedded(settings):
        return settings
    keys, ports = read_keys(home), read_json(home.ports_path)
    if keys is None or ports is None:
        raise EmbeddedError(f"The home {home.path} is empty. Run `duckicelake serve` or `duckicelake init` first.")
    found: dict[str, Any] = {}
    if settings.embedded_postgres:
        found["postgres_dsn"] = SecretStr(build_access(keys, ports["postgres"]).dsn)
        if "metadata_schema" not in settings.model_fields_set:
            found["metadata_schema"] = METADATA_SCHEMA
    if settings.embedded_store:
        found |= _list_store(settings, StoreAccess.on_loopback(keys, ports["s3"]))
    return settings.model_copy(update=found)


def read_joined(arguments: dict[str, Any]) -> tuple[Settings, Home]:
    """Return a command's settings completed with the embedded servers of its home, and that home.

    Raises: EmbeddedError: the settings ask for embedded servers, and none run
    """
    settings = read_settings(arguments)
    opened = open_home(settings.home)
    return join_running(settings, opened), opened


def join_running(settings: Settings, home: Home) -> Settings:
    """Return the settings completed with the embedded servers that run on the home. It starts none.

    Raises: EmbeddedError: none runs; the message is the same for every command
    """
    if is_embedded(settings) and find_holder(home) is None:
        raise EmbeddedError(
            f"Nothing runs on the home {home.path}. Start the server with `{format_command('serve')}`, "
            f"or Postgres and S3 alone with `{format_command('backends', 'up')}`; --home names another home."
        )
    return join_home(settings, home)


@contextmanager
def using_stack(settings: Settings, purpose: str, report: Report) -> Generator[Settings]:
    """Yield the settings of the running stack, or start a stack and stop it at the end of the block."""
    if not is_embedded(settings):
        yield settings
        return
    home = open_home(settings.home)
    if find_holder(home) is not None:
        yield join_home(settings, home)
        return
    stack = start_stack(settings.home, plan_stack(settings, purpose), report)
    try:
        yield join_home(settings, home)
    finally:
        stack.stop()


def _list_store(settings: Settings, access: StoreAccess) -> dict[str, Any]:
    return {
        "s3_endpoint": access.endpoint,
        "s3_region": access.region,
        "s3_access_key_id": access.access_key_id,
        "s3_secret_access_key": SecretStr(access.secret_access_key),
        "data_path": settings.data_path or DATA_PATH,
        "iceberg_path": settings.iceberg_path or ICEBERG_PATH,
        "sts_role_arn": settings.sts_role_arn or access.role_arn,
    }


BACKENDS_PURPOSE = "backends"
READY_LINE = b"ready\n"
STOP_SECONDS = 60.0


def run_backends(settings: Settings, report: Report) -> None:
    """Run the stack in the foreground until a stop signal arrives (see `stopping_on_signals`)."""
    stack = start_stack(settings.home, plan_stack(settings, BACKENDS_PURPOSE), report)
    try:
        for lake in join_home(settings, stack.home).lakes():
            prepare_lake(lake, stack.home.make_folder("extensions"), report)
        sys.stdout.buffer.write(READY_LINE)
        sys.stdout.buffer.flush()
        threading.Event().wait()
    finally:
        stack.stop()


def start_backends(settings: Settings, arguments: Sequence[str]) -> int:
    """Start the stack in the background and return the pid of its process, which outlives this one.

    Raises: EmbeddedError: the stack does not start. SettingsError: these settings use no embedded server
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
            raise EmbeddedError(f"The embedded stack did not start:\n{read_log_tail(log_path)}")
    return process.pid


def stop_backends(home: Home) -> bool:
    """Stop the stack that `backends up` started, wait for its end, and return True if one ran.

    Raises: EmbeddedError: the home is held by another command, or the stack does not stop
    """
    holder = find_holder(home)
    if holder is None:
        return False
    pid, purpose = holder
    if purpose != BACKENDS_PURPOSE:
        raise EmbeddedError(f"The home {home.path} is in use by `duckicelake {purpose}` (pid {pid}); stop that one.")
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended, _, _ = select.select([process], [], [], STOP_SECONDS)
    finally:
        os.close(process)
    if not ended:
        raise EmbeddedError(f"The embedded stack (pid {pid}) did not stop within {STOP_SECONDS:.0f} s.")
    return True
