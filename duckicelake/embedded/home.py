"""The home folder of an embedded stack: its keys, ports and files, and the lock that gives it to one process at a time.

`commands` and the other modules of this package use it. It reads and writes files of the home, and tries ports of this machine.
"""

import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckicelake.errors import CatalogError

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


class EmbeddedError(CatalogError):
    """The embedded stack does not work; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one home folder."""

    path: Path

    @property
    def keys_path(self) -> Path:
        return self.path / "keys.json"

    @property
    def ports_path(self) -> Path:
        return self.path / "ports.json"

    @property
    def server_path(self) -> Path:
        return self.path / "server.json"

    def make_folder(self, name: str) -> Path:
        """Return a folder below the home, created with mode 0700 if it is missing."""
        folder = self.path / name
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        return folder


@dataclass(frozen=True, slots=True)
class Keys:
    """The secrets of one embedded stack, created once per home."""

    postgres_admin_password: str
    postgres_password: str
    s3_access_key_id: str
    s3_secret_access_key: str
    sts_signing_key: str
    write_jwt_key: str
    read_jwt_key: str


def open_home(path: Path) -> Home:
    """Return the home at `path`, created if it is missing and readable by its owner only.

    Raises: EmbeddedError: the folder cannot be created, or belongs to another user
    """
    path = path.expanduser().absolute()
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        if path.stat().st_uid != os.geteuid():
            raise EmbeddedError(f"The home folder {path} belongs to another user; choose one of your own with --home.")
        path.chmod(PRIVATE_FOLDER)
    except OSError as error:
        raise EmbeddedError(f"The home folder {path} cannot be used: {error.strerror}. Choose another with --home.") from error
    return Home(path)


class HomeInUse(EmbeddedError):
    """Another process has locked the home; `purpose` is its command."""

    def __init__(self, message: str, purpose: str) -> None:
        super().__init__(message)
        self.purpose = purpose


class HomeLock:
    """An exclusive lock on a home folder or a part of it; the kernel releases it when the process ends, even by a crash."""

    def __init__(self, home: Home, part: str = "stack") -> None:
        self._home = home
        self._path = home.path / f"{part}.lock"
        self._fd: int | None = None

    def acquire(self, purpose: str) -> None:
        """Lock the home.

        Raises: HomeInUse: another process has locked it
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid, _, held_for = os.read(fd, 64).decode().strip().partition(" ")
            os.close(fd)
            raise HomeInUse(
                f"The home {self._home.path} is in use by `duckicelake {held_for or '…'}` (pid {pid or 'unknown'}). "
                "Stop that one, or choose another home with --home.",
                held_for,
            ) from error
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()} {purpose}\n".encode())
        self._fd = fd

    def release(self) -> None:
        """Release the lock; does nothing if it is not held."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def find_holder(home: Home, part: str = "stack") -> tuple[int, str] | None:
    """Return the pid and purpose of the process that has locked the home, None if it is free."""
    lock = HomeLock(home, part)
    try:
        lock.acquire("look")
    except HomeInUse as held:
        pid, _, _ = (home.path / f"{part}.lock").read_text().partition(" ")
        return (int(pid), held.purpose) if pid.isdigit() else None
    lock.release()
    return None


def read_keys(home: Home) -> Keys | None:
    """Return the home's secrets, None if it has none yet."""
    found = read_json(home.keys_path)
    return None if found is None else Keys(**found)


def get_keys(home: Home) -> Keys:
    """Return the home's secrets; create them at random and write them with mode 0600 if there are none."""
    found = read_keys(home)
    if found is not None:
        return found
    keys = Keys(
        postgres_admin_password=secrets.token_hex(24),
        postgres_password=secrets.token_hex(24),
        s3_access_key_id=secrets.token_hex(10).upper(),
        s3_secret_access_key=secrets.token_hex(20),
        sts_signing_key=secrets.token_urlsafe(48),
        write_jwt_key=secrets.token_hex(32),
        read_jwt_key=secrets.token_hex(32),
    )
    write_json(home.keys_path, {name: getattr(keys, name) for name in Keys.__slots__})
    return keys


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if the file is missing.

    Raises: EmbeddedError: the file is not JSON
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise EmbeddedError(f"{path} is damaged (line {error.lineno}); restore it, or start with a new --home.") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file atomically with a JSON object, mode 0600."""
    write_private(path, json.dumps(content, indent=2).encode() + b"\n")


def write_private(path: Path, content: bytes) -> None:
    """Replace the file atomically; only its owner can read it at any time."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


LOOPBACK = "127.0.0.1"
LOWEST_PORT, HIGHEST_PORT = 15000, 31999
"""Below the kernel's range for outgoing connections, so that no client socket occupies a port that is chosen again at the next start."""
TRIES = 200


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """True if a server could listen on the port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def check_free(port: int, what: str, setting: str, host: str = LOOPBACK) -> None:
    """Check that nothing listens on a port.

    Raises: EmbeddedError: the port is in use; names its purpose and the setting that changes it
    """
    if not is_free(port, host):
        raise EmbeddedError(f"Port {port} for {what} is in use. Stop what listens there, or choose another with {setting}.")


def choose_ports(home: Home, names: Iterable[str], configured: dict[str, int]) -> dict[str, int]:
    """Return a free port for each name, and write them to the home: the configured port, or the last one used, or a random one.

    Raises: EmbeddedError: a configured port is in use, or no free port was found
    """
    last_used: dict[str, int] = read_json(home.ports_path) or {}
    chosen: dict[str, int] = {}
    for name in names:
        port = configured.get(name)
        if port is not None:
            check_free(port, name, f"--{name}-port")
        else:
            port = last_used.get(name)
        if port is None or port in chosen.values() or not is_free(port):
            port = _choose_free_port(set(chosen.values()) | set(configured.values()))
        chosen[name] = port
    write_json(home.ports_path, last_used | chosen)
    return chosen


def _choose_free_port(taken: set[int]) -> int:
    for _ in range(TRIES):
        port = LOWEST_PORT + secrets.randbelow(HIGHEST_PORT - LOWEST_PORT)
        if port not in taken and is_free(port):
            return port
    raise EmbeddedError(f"No free port found on {LOOPBACK} between {LOWEST_PORT} and {HIGHEST_PORT}.")
