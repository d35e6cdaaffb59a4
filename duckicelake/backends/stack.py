"""The whole embedded stack: one call starts what is wanted, one call stops it in order."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from duckicelake.backends import minio, seaweedfs
from duckicelake.backends.buckets import StoreAccess, prepare_bucket
from duckicelake.backends.home import BackendError, Home, HomeLock, Keys, get_keys, open_home
from duckicelake.backends.keeper import Job, Keeper
from duckicelake.backends.ports import choose_ports
from duckicelake.backends.postgres import PostgresAccess, plan_postgres, prepare_database
from duckicelake.backends.processes import reap_stale

READY_SECONDS = 60.0
StoreKind = Literal["auto", "minio", "seaweedfs", "none"]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What to start, and which command asks: a port left None is chosen, and kept for the next start."""

    purpose: str = "serve"
    postgres: bool = True
    store: StoreKind = "auto"
    postgres_port: int | None = None
    s3_port: int | None = None

    def list_configured_ports(self) -> dict[str, int]:
        """Return the ports that somebody insists on, by name."""
        ports = {"postgres": self.postgres_port, "s3": self.s3_port}
        return {name: port for name, port in ports.items() if port is not None}


@dataclass(slots=True)
class Stack:
    """A running stack. `stop()` ends S3, then Postgres, then lets go of the home."""

    home: Home
    lock: HomeLock
    keepers: list[Keeper] = field(default_factory=list[Keeper])
    postgres: PostgresAccess | None = None
    store: StoreAccess | None = None

    def stop(self) -> None:
        """Stop everything that was started; harmless when called twice."""
        while self.keepers:
            self.keepers.pop().stop()
        self.lock.release()


def resolve_store(kind: StoreKind, home: Home) -> StoreKind:
    """Return the store to start: `auto` is the one whose files the home holds, else MinIO when the PATH has it, else SeaweedFS.

    Raises: BackendError: the home holds the files of another store
    """
    stores: tuple[StoreKind, ...] = ("seaweedfs", "minio")
    kept: list[StoreKind] = [name for name in stores if (home.path / name).exists()]
    if kind == "auto" and kept:
        return kept[0]
    if kind == "auto":
        return "seaweedfs" if minio.find_minio() is None else "minio"
    if kind != "none" and kept and kind not in kept:
        raise BackendError(f"The files of the home {home.path} are in {kept[0]}; use --store {kept[0]}, or another --home.")
    return kind


def start_stack(path: Path, options: StackOptions, report: Report) -> Stack:
    """Start the embedded Postgres and S3 on the home at `path` and return when both answer.

    `report` gets one line per step and, later, whenever a child died and is started again; from any thread.
    Raises: HomeInUse: another process runs a stack on this home
            BackendError: a port is taken, or a child does not start; nothing is left running
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
        _keep(stack, plan_postgres(home, keys, ports["postgres"]), report)
    if store != "none":
        _keep(stack, _plan_store(store, home, keys, ports), report)
    for keeper in stack.keepers:
        keeper.wait_ready(READY_SECONDS)
    if options.postgres:
        stack.postgres = prepare_database(keys, ports["postgres"])
    if store != "none":
        stack.store = StoreAccess.on_loopback(keys, ports["s3"])
        prepare_bucket(stack.store)


def _keep(stack: Stack, job: Job, report: Report) -> None:
    keeper = Keeper(job, report)
    stack.keepers.append(keeper)
    keeper.start()


def _list_store_ports(store: StoreKind) -> list[str]:
    if store == "none":
        return []
    return minio.list_port_names() if store == "minio" else seaweedfs.list_port_names()


def _plan_store(store: StoreKind, home: Home, keys: Keys, ports: dict[str, int]) -> Job:
    if store == "minio":
        return minio.plan_minio(home, keys, ports)
    return seaweedfs.plan_seaweedfs(home, keys, ports, datetime.now(UTC))
