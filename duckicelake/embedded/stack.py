"""The embedded stack: start Postgres and S3 with one call, stop them with another.

Called by `commands` (`serve`, `backends`) and by tests.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from duckicelake.embedded import object_store
from duckicelake.embedded.home import EmbeddedError, Home, HomeLock, Keys, choose_ports, get_keys, open_home
from duckicelake.embedded.object_store import StoreAccess, prepare_bucket
from duckicelake.embedded.postgres import PostgresAccess, plan_postgres, prepare_database
from duckicelake.embedded.processes import Service, Supervisor, reap_stale

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
