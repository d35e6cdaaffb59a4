"""Objects as files of the local disk, with the promises of an object store: whole, write-once, compare-and-swap."""

import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from duckicelake.errors import NotFound, ServiceUnavailable

PART_PREFIX, PART_SUFFIX = ".part-", ".tmp"


class LocalDisk:
    """Files by absolute path. A reader sees a file whole or not at all, also after a crash."""

    def read(self, key: str) -> bytes:
        with _telling("read", key):
            return Path(key).read_bytes()

    def ask(self, key: str) -> tuple[int, Callable[[], bytes]]:
        with _telling("read", key):
            return Path(key).stat().st_size, lambda: self.read(key)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with _telling("read", key), Path(key).open("rb") as file:
            return [os.pread(file.fileno(), length, start) for start, length in ranges]

    def find_size(self, key: str) -> int | None:
        found = _find_stat(key)
        return None if found is None else found.st_size

    def find_etag(self, key: str) -> str | None:
        found = _find_stat(key)
        return None if found is None else _format_etag(found)

    def put_new(self, key: str, content: bytes) -> bool:
        with _telling("write", key), _written_beside(key, [content]) as part:
            try:
                os.link(part, key)
            except FileExistsError:
                return False
        return True

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        with _telling("write", key), _written_beside(key, parts) as part:
            os.replace(part, key)

    def replace(self, key: str, content: bytes, etag: str) -> str | None:
        if self.find_etag(key) is None:
            return None
        with _telling("replace", key), _locked_folder(key), _written_beside(key, [content]) as part:
            if self.find_etag(key) != etag:
                return None
            os.replace(part, key)
            return self.find_etag(key)

    def delete(self, key: str) -> None:
        with _telling("delete", key):
            Path(key).unlink(missing_ok=True)

    def list_under(self, prefix: str) -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(prefix):
            for name in names:
                key = os.path.join(folder, name)
                unfinished = name.startswith(PART_PREFIX) and name.endswith(PART_SUFFIX)
                if not unfinished and (size := self.find_size(key)) is not None:
                    yield key, size

    def list_modified(self, prefix: str) -> Iterator[tuple[str, datetime]]:
        """Files that a crash left unfinished are listed too."""
        for folder, _, names in os.walk(prefix):
            for name in names:
                key = os.path.join(folder, name)
                if (found := _find_stat(key)) is not None:
                    yield key, datetime.fromtimestamp(found.st_mtime, UTC)

    def check(self) -> None:
        """The local disk is always there; what it refuses shows with the first file."""


def _find_stat(key: str) -> os.stat_result | None:
    with _telling("look up", key):
        try:
            found = Path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
    return found if stat.S_ISREG(found.st_mode) else None


def _format_etag(found: os.stat_result) -> str:
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


@contextmanager
def _written_beside(key: str, parts: Iterable[bytes]) -> Generator[str]:
    """A finished file in the key's folder, made durable, and gone again afterwards unless it was moved."""
    folder = Path(key).parent
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(PART_SUFFIX, PART_PREFIX, folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for content in parts:
                file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        yield part
    finally:
        Path(part).unlink(missing_ok=True)


@contextmanager
def _locked_folder(key: str) -> Generator[None]:
    """Only one of several processes compares and swaps in a folder at a time; the lock dies with its owner."""
    folder = os.open(Path(key).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def _telling(verb: str, key: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if verb == "read" and isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            raise NotFound(f"The file {key} is missing.") from None
        raise ServiceUnavailable(f"The disk does not let us {verb} {key} ({error.strerror}).") from None
