"""One real Postgres and S3 for every test process of this checkout; the last one to leave switches off the light.

A process uses the stack while it holds a shared lock on the file `users`; the kernel takes the lock back however the process ends.
The stack itself lives in a process of its own (`python -m tests.support.shared_stack FOLDER`) that waits for the exclusive lock.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from duckicelake.embedded.ducklake import LakeAddress, connect_duckdb, create_lake
from duckicelake.embedded.home import read_json, write_json
from duckicelake.embedded.object_store import StoreAccess
from duckicelake.embedded.processes import reap_stale
from duckicelake.embedded.stack import ADMIN_ROLE, ROLE, Stack, StackOptions, start_stack
from duckicelake.lake.install import install
from tests.support.keys import format_s3_keys

ROOT = Path(__file__).parents[2]
TEMPLATE = "lake_template"
METADATA_SCHEMA = "lake"
EXTENSIONS = ("httpfs", "postgres_scanner", "ducklake", "avro", "iceberg")
START_SECONDS = 90.0
IN_MEMORY = Path("/dev/shm")
FIRST_WITH_ITERATIONS = 160000
MEMORY_BYTES = 4 << 30
"""So much has to be free there."""


@dataclass(frozen=True, slots=True)
class SharedStack:
    """What a test process needs of the running stack."""

    admin_dsn: str
    dsn: str
    store: StoreAccess
    extension_folder: str


@contextmanager
def use_shared_stack() -> Generator[SharedStack]:
    """The running stack, started when nobody runs it, kept running while anybody is inside."""
    folder = _find_folder()
    with _opened(folder / "users") as users:
        with _opened(folder / "starting") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            stack = _read_stack(folder) or _spawn_stack(folder)
        yield stack


def run_stack(folder: Path) -> None:
    """Start the stack, say how to reach it in `stack.json`, and stop it when its last user has gone."""
    homes = [folder / "home", IN_MEMORY / f"{folder.name}-home"]
    for earlier in homes:
        reap_stale(earlier / "run")
        shutil.rmtree(earlier, ignore_errors=True)
    shutil.rmtree(folder / "objects", ignore_errors=True)
    home = homes[_has_memory()]
    home.mkdir(mode=0o700)
    (folder / "objects").mkdir(mode=0o700)
    # in memory is what Postgres has alone: the objects of a whole run are many
    (home / "seaweedfs").symlink_to(folder / "objects")
    stack = start_stack(home, StackOptions(store="seaweedfs"), lambda line: None)
    try:
        write_json(folder / "stack.json", asdict(_prepare(stack)))
        with _opened(folder / "users") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            (folder / "stack.json").unlink()
            stack.stop()
            shutil.rmtree(home, ignore_errors=True)
            shutil.rmtree(folder / "objects", ignore_errors=True)
    finally:
        stack.stop()


def _has_memory() -> bool:
    """Tell whether Postgres may have its files in memory.

    Each test makes a database of 300 files and drops it, and a file system without a journal passes over all inodes that were
    freed in the last minutes whenever it gives one: in memory a lake takes a test half as long.
    """
    return os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= MEMORY_BYTES


def _prepare(stack: Stack) -> SharedStack:
    assert stack.postgres is not None
    assert stack.store is not None
    extension_folder = stack.home.make_folder("extensions")
    connect_duckdb(extension_folder, EXTENSIONS).close()
    dsn = stack.postgres.dsn.replace("dbname=lake", f"dbname={TEMPLATE}")
    with psycopg.connect(stack.postgres.admin_dsn, autocommit=True) as conn:
        _make_logins_cheap(conn, [stack.postgres.dsn, stack.postgres.admin_dsn])
        conn.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(TEMPLATE), sql.Identifier(ROLE)))
    with psycopg.connect(stack.postgres.admin_dsn.replace(f"dbname={ADMIN_ROLE}", f"dbname={TEMPLATE}"), autocommit=True) as conn:
        # before Postgres 15 everybody might make tables there
        conn.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    create_lake(extension_folder, LakeAddress(dsn, METADATA_SCHEMA, "s3://lake/template/data/"), format_s3_keys(stack.store))
    with psycopg.connect(dsn) as conn:
        install(conn, METADATA_SCHEMA, "s3://lake/template/iceberg/")
    return SharedStack(stack.postgres.admin_dsn, stack.postgres.dsn, stack.store, str(extension_folder))


def _make_logins_cheap(conn: psycopg.Connection, dsns: list[str]) -> None:
    """Hash the passwords once instead of 4,096 times: each test opens some ten connections, and a client hashes for each."""
    if conn.info.server_version < FIRST_WITH_ITERATIONS:
        return
    conn.execute("SET scram_iterations = 1")
    for dsn in dsns:
        known = psycopg.conninfo.conninfo_to_dict(dsn)
        conn.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(str(known["user"])), sql.Literal(known["password"])))


def _find_folder() -> Path:
    checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"duckicelake-tests-{os.geteuid()}-{checkout}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextmanager
def _opened(path: Path) -> Generator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _read_stack(folder: Path) -> SharedStack | None:
    found = read_json(folder / "stack.json")
    if found is None:
        return None
    stack = SharedStack(found["admin_dsn"], found["dsn"], StoreAccess(**found["store"]), found["extension_folder"])
    try:
        psycopg.connect(stack.admin_dsn, connect_timeout=5).close()
    except psycopg.Error:
        (folder / "stack.json").unlink(missing_ok=True)
        return None
    return stack


def _spawn_stack(folder: Path) -> SharedStack:
    log_path = folder / "stack.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.shared_stack", str(folder)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        found = _read_stack(folder)
        if found is not None:
            # The stack outlives this process, which is not the one to wait for it.
            process.returncode = 0
            return found
        time.sleep(0.05)
    raise RuntimeError(f"The shared stack did not start:\n{log_path.read_text()}")


if __name__ == "__main__":
    run_stack(Path(sys.argv[1]))
