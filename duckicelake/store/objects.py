"""Objects by URI on S3 and on the local disk: read, write once, compare and swap, list, delete.

`catalog` shares one `Objects` between all threads of a warehouse; `commands` and the jobs `import` and `export` open their own. Parallel
methods use a thread pool of the `Objects`. `prove` writes and deletes an object. Some calls are made while a transaction of the caller is
open.
"""

import fcntl
import io
import os
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import length_hint
from pathlib import Path
from threading import Condition, Event, Lock
from typing import BinaryIO, TypeVar, cast
from uuid import uuid4

from duckicelake.errors import NotFound, ServiceUnavailable, Unsupported
from duckicelake.store.s3 import S3Bucket, StoreSettings
from duckicelake.store.uris import ObjectBackend, parse_uri

__all__ = ["Objects", "RangeFile", "StoreSettings", "open_objects"]

IN_FLIGHT = 16
EXHAUSTED = object()

Item = TypeVar("Item")


class Objects:
    """The objects in every bucket that the settings give access to, and on the local disk. Safe to share between threads.

    Takes `s3://bucket/key`, `s3a://…`, `file:///path` and absolute paths; keys are literal.
    Raises: ServiceUnavailable — the store does not answer or refuses access; NotFound — the object is missing;
    Unsupported — an unknown scheme, or a key that clients or servers would normalize to another one
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._backends: dict[str, ObjectBackend] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(IN_FLIGHT - 1, "objects")
        self._writing: set[str] = set()
        self._written = Condition()

    def read(self, uri: str) -> bytes:
        """Return the content of an object."""
        backend, key = self._resolve(uri)
        return backend.read(key)

    def read_small(self, uri: str, most_bytes: int) -> bytes:
        """Return the content of an object, in one request. Raises: Unsupported: it has more than `most_bytes`."""
        backend, key = self._resolve(uri)
        size_bytes, read = backend.open(key)
        if size_bytes > most_bytes:
            raise Unsupported(f"{uri!r} has {size_bytes} bytes, more than the {most_bytes} that are read.")
        return read()

    def read_many(self, uris: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of objects by URI, read in parallel."""
        read: dict[str, bytes] = {}

        def read_one(uri: str) -> None:
            read[uri] = self.read(uri)

        _run_in_parallel(self._pool, read_one, uris)
        return read

    def each(self, act: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Call `act` for every item, in parallel; the first error stops it and is raised. `act` must not call another parallel method."""
        _run_in_parallel(self._pool, act, items)

    def read_ranges(self, uri: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the ranges given as (start, length), in that order."""
        backend, key = self._resolve(uri)
        return backend.read_ranges(key, ranges) if ranges else []

    def open(self, uri: str, size_bytes: int | None = None, most_bytes: int | None = None) -> BinaryIO:
        """Return a seekable file that fetches only the ranges read from it; a known size saves a request.

        Reading raises Unsupported if the object is shorter, or if more than `most_bytes` are read at once.
        """
        return cast("BinaryIO", RangeFile(self, uri, self.size(uri) if size_bytes is None else size_bytes, most_bytes))

    def put_new(self, uri: str, content: bytes) -> bool:
        """Write an object unless it exists. True if it was written."""
        backend, key = self._resolve(uri)
        with self._exclusive(uri):
            return backend.put_new(key, content)

    def put_parts(self, uri: str, parts: Iterator[bytes]) -> None:
        """Write an object from an iterator, with a few parts in memory at a time; the object appears with the last part.

        An existing object is overwritten, so the name must be unique. An error of `parts` stops the writing.
        """
        backend, key = self._resolve(uri)
        backend.put_parts(key, parts)

    def put_many_new(self, items: Iterable[tuple[str, bytes]]) -> set[str]:
        """Write objects in parallel unless they exist, and return the URIs of those written.

        Items are taken from the iterable as threads are free, so only a few are in memory.
        The first error stops the writing and is raised; objects written until then stay.
        """
        new: set[str] = set()

        def put_one(item: tuple[str, bytes]) -> None:
            uri, content = item
            if self.put_new(uri, content):
                new.add(uri)

        _run_in_parallel(self._pool, put_one, items)
        return new

    def find_etag(self, uri: str) -> str | None:
        """Return the ETag of an object, for `replace`; None if it is missing."""
        backend, key = self._resolve(uri)
        return backend.find_etag(key)

    def replace(self, uri: str, content: bytes, etag: str | None) -> str | None:
        """Replace the content that has this ETag (None: create the object). Return the new ETag, None if another content is there.

        None can also follow a success whose response was lost: read the object before deciding.
        """
        backend, key = self._resolve(uri)
        with self._exclusive(uri):
            if etag is not None:
                return backend.replace(key, content, etag)
            return backend.find_etag(key) if backend.put_new(key, content) else None

    def exists(self, uri: str) -> bool:
        """True if the object exists."""
        backend, key = self._resolve(uri)
        return backend.find_size(key) is not None

    def find_local_path(self, uri: str) -> str | None:
        """Return the object's path on the local disk, None if it is on S3."""
        address = parse_uri(uri)
        return None if address.bucket else address.key

    def size(self, uri: str) -> int:
        """Return the object's size in bytes."""
        backend, key = self._resolve(uri)
        size_bytes = backend.find_size(key)
        if size_bytes is None:
            raise NotFound(f"The object {uri} is missing.")
        return size_bytes

    def list_under(self, prefix_uri: str) -> Iterator[tuple[str, int]]:
        """Yield (URI, size) of every object below a folder, unordered; `a/b` does not include `a/bc`."""
        address = parse_uri(prefix_uri)
        for key, size_bytes in self._get_backend(address.bucket).list_under(address.key):
            yield address.format_uri(key), size_bytes

    def list_modified(self, prefix_uri: str) -> Iterator[tuple[str, datetime]]:
        """Yield (URI, time of last modification) of every object below a folder, temporary files of the local disk included."""
        address = parse_uri(prefix_uri)
        for key, modified in self._get_backend(address.bucket).list_modified(address.key):
            yield address.format_uri(key), modified

    def delete(self, uri: str) -> None:
        """Delete an object; does nothing if it is missing."""
        backend, key = self._resolve(uri)
        backend.delete(key)

    def delete_many(self, uris: Iterable[str]) -> None:
        """Delete objects in parallel; missing ones are skipped."""
        _run_in_parallel(self._pool, self.delete, uris)

    def prove(self, folder_uri: str) -> None:
        """Write, read and delete one object in a folder.

        Raises: ServiceUnavailable: one of these fails, or the store returns another content
        """
        uri, content = f"{folder_uri.rstrip('/')}/duckicelake-probe-{uuid4().hex}", b"duckicelake"
        self.put_new(uri, content)
        try:
            found = self.read(uri)
        except NotFound as error:
            raise ServiceUnavailable(f"The object store has lost {uri!r}, which was just written.") from error
        finally:
            self.delete(uri)
        if found != content:
            raise ServiceUnavailable(f"The object store returns something else for {uri!r} than was written.")

    def check(self, uri: str) -> None:
        """Raise ServiceUnavailable, within about three seconds, unless the URI's bucket answers."""
        self._get_backend(parse_uri(uri).bucket).check()

    def _resolve(self, uri: str) -> tuple[ObjectBackend, str]:
        address = parse_uri(uri)
        if address.key in ("", "/"):
            raise Unsupported(f"The location {uri!r} names no object; give its key too.")
        return self._get_backend(address.bucket), address.key

    @contextmanager
    def _exclusive(self, uri: str) -> Generator[None]:
        """Let one thread write a URI at a time: SeaweedFS makes concurrent conditional writes wait for seconds."""
        with self._written:
            self._written.wait_for(lambda: uri not in self._writing)
            self._writing.add(uri)
        try:
            yield
        finally:
            with self._written:
                self._writing.remove(uri)
                self._written.notify_all()

    def _get_backend(self, bucket: str) -> ObjectBackend:
        with self._lock:
            backend = self._backends.get(bucket)
            if backend is None:
                backend = S3Bucket(self._settings, bucket) if bucket else LocalDisk()
                self._backends[bucket] = backend
            return backend


class RangeFile(io.RawIOBase):
    """A read-only file over an object, fetched range by range."""

    def __init__(self, objects: Objects, uri: str, size_bytes: int, most_bytes: int | None = None) -> None:
        self._objects, self._uri, self._size_bytes, self._position = objects, uri, size_bytes, 0
        self._most_bytes = most_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._size_bytes - self._position)
        length = left if size < 0 else min(size, left)
        if length == 0:
            return b""
        if self._most_bytes is not None and length > self._most_bytes:
            raise Unsupported(f"{self._uri!r} would have {length} bytes at once read of it, more than the {self._most_bytes} that are.")
        [part] = self._objects.read_ranges(self._uri, [(self._position, length)])
        self._position += len(part)
        return part

    def readall(self) -> bytes:
        return self.read()


def open_objects(settings: StoreSettings) -> Objects:
    """Return the objects that settings give access to; nothing is contacted before the first use."""
    return Objects(settings)


def _run_in_parallel(pool: ThreadPoolExecutor, act: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call `act` for every item on a bounded number of threads; the calling thread works too, so it never waits for the pool."""
    source, lock, failed = iter(items), Lock(), Event()

    def work() -> None:
        while not failed.is_set():
            with lock:
                item = next(source, EXHAUSTED)
            if item is EXHAUSTED:
                return
            try:
                act(cast("Item", item))
            except BaseException:
                failed.set()
                raise

    workers = min(IN_FLIGHT, length_hint(items, IN_FLIGHT))
    others = [pool.submit(work) for _ in range(workers - 1)]
    try:
        work()
    finally:
        started = [worker for worker in others if not worker.cancel()]
        wait(started)
    for worker in started:
        worker.result()


PART_PREFIX, PART_SUFFIX = ".part-", ".tmp"


class LocalDisk:
    """Files by absolute path, with the guarantees of an object store: a reader sees a whole file or none, even after a crash."""

    def read(self, key: str) -> bytes:
        with _translated_errors("read", key):
            return Path(key).read_bytes()

    def open(self, key: str) -> tuple[int, Callable[[], bytes]]:
        with _translated_errors("read", key):
            return Path(key).stat().st_size, lambda: self.read(key)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with _translated_errors("read", key), Path(key).open("rb") as file:
            return [os.pread(file.fileno(), length, start) for start, length in ranges]

    def find_size(self, key: str) -> int | None:
        found = _find_stat(key)
        return None if found is None else found.st_size

    def find_etag(self, key: str) -> str | None:
        found = _find_stat(key)
        return None if found is None else _format_etag(found)

    def put_new(self, key: str, content: bytes) -> bool:
        with _translated_errors("write", key), _temporary_file(key, [content]) as part:
            try:
                os.link(part, key)
            except FileExistsError:
                return False
        return True

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        with _translated_errors("write", key), _temporary_file(key, parts) as part:
            os.replace(part, key)

    def replace(self, key: str, content: bytes, etag: str) -> str | None:
        if self.find_etag(key) is None:
            return None
        with _translated_errors("replace", key), _locked_folder(key), _temporary_file(key, [content]) as part:
            if self.find_etag(key) != etag:
                return None
            os.replace(part, key)
            return self.find_etag(key)

    def delete(self, key: str) -> None:
        with _translated_errors("delete", key):
            Path(key).unlink(missing_ok=True)

    def list_under(self, prefix: str) -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(prefix):
            for name in names:
                key = os.path.join(folder, name)
                unfinished = name.startswith(PART_PREFIX) and name.endswith(PART_SUFFIX)
                if not unfinished and (size := self.find_size(key)) is not None:
                    yield key, size

    def list_modified(self, prefix: str) -> Iterator[tuple[str, datetime]]:
        """Yield temporary files that a crash left behind too."""
        for folder, _, names in os.walk(prefix):
            for name in names:
                key = os.path.join(folder, name)
                if (found := _find_stat(key)) is not None:
                    yield key, datetime.fromtimestamp(found.st_mtime, UTC)

    def check(self) -> None:
        """Do nothing: the local disk always answers, and errors appear with the first file."""


def _find_stat(key: str) -> os.stat_result | None:
    with _translated_errors("look up", key):
        try:
            found = Path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
    return found if stat.S_ISREG(found.st_mode) else None


def _format_etag(found: os.stat_result) -> str:
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


@contextmanager
def _temporary_file(key: str, parts: Iterable[bytes]) -> Generator[str]:
    """Write a temporary file in the key's folder, sync it, and yield its path; delete it afterwards unless it was moved."""
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
    """Lock the key's folder, so that one process at a time compares and swaps; the kernel releases the lock of a dead process."""
    folder = os.open(Path(key).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def _translated_errors(verb: str, key: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if verb == "read" and isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            raise NotFound(f"The file {key} is missing.") from None
        raise ServiceUnavailable(f"The disk does not let us {verb} {key} ({error.strerror}).") from None
