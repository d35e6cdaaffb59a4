"""The home folder of an embedded stack: where its keys, ports, logs and databases live, and who may use it."""

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckicelake.errors import CatalogError

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


class BackendError(CatalogError):
    """The embedded stack cannot do its work; the message says why and what to do."""


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
        """Return the folder of that name below the home, made with mode 0700 when it was missing."""
        folder = self.path / name
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        return folder


@dataclass(frozen=True, slots=True)
class Keys:
    """The secrets of one embedded stack, made once per home."""

    postgres_admin_password: str
    postgres_password: str
    s3_access_key_id: str
    s3_secret_access_key: str
    sts_signing_key: str
    write_jwt_key: str
    read_jwt_key: str


def open_home(path: Path) -> Home:
    """Return the home at `path`, made when missing, readable by its owner only.

    Raises: BackendError: the folder cannot be made, or belongs to another user
    """
    path = path.expanduser().absolute()
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        if path.stat().st_uid != os.geteuid():
            raise BackendError(f"The home folder {path} belongs to another user; choose one of your own with --home.")
        path.chmod(PRIVATE_FOLDER)
    except OSError as error:
        raise BackendError(f"The home folder {path} cannot be used: {error.strerror}. Choose another with --home.") from error
    return Home(path)


class HomeInUse(BackendError):
    """Somebody else holds the home; `purpose` says for what."""

    def __init__(self, message: str, purpose: str) -> None:
        super().__init__(message)
        self.purpose = purpose


class HomeLock:
    """Holds a home folder, or a part of it, for one process; the kernel lets go of it when that ends, however it ends."""

    def __init__(self, home: Home, part: str = "stack") -> None:
        self._home = home
        self._path = home.path / f"{part}.lock"
        self._fd: int | None = None

    def acquire(self, purpose: str) -> None:
        """Take the home.

        Raises: HomeInUse: another process holds it
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
        """Let go of the home; harmless when it is not held."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def find_holder(home: Home, part: str = "stack") -> tuple[int, str] | None:
    """Return the pid and purpose of the process that holds the home, or None when nobody does."""
    lock = HomeLock(home, part)
    try:
        lock.acquire("look")
    except HomeInUse as held:
        pid, _, _ = (home.path / f"{part}.lock").read_text().partition(" ")
        return (int(pid), held.purpose) if pid.isdigit() else None
    lock.release()
    return None


def read_keys(home: Home) -> Keys | None:
    """Return the home's secrets, or None when the home has none yet."""
    found = read_json(home.keys_path)
    return None if found is None else Keys(**found)


def get_keys(home: Home) -> Keys:
    """Return the home's secrets, made at random the first time and kept with mode 0600."""
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
    """Return the JSON object in a file, or None when there is no such file.

    Raises: BackendError: the file is not JSON
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BackendError(f"{path} is damaged (line {error.lineno}); restore it, or start with a new --home.") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file with this JSON object, whole or not at all, mode 0600."""
    write_private(path, json.dumps(content, indent=2).encode() + b"\n")


def write_private(path: Path, content: bytes) -> None:
    """Replace the file, whole or not at all; only its owner can ever read it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
