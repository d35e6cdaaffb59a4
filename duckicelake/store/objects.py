"""Objects by full URI: read, write once, compare and swap, list; on S3 and on the local disk."""

import io
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime
from operator import length_hint
from threading import Condition, Event, Lock
from typing import BinaryIO, TypeVar, cast
from uuid import uuid4

from duckicelake.errors import NotFound, ServiceUnavailable, Unsupported
from duckicelake.store.disk import LocalDisk
from duckicelake.store.place import Place, parse_uri
from duckicelake.store.s3 import S3Bucket, StoreSettings

__all__ = ["Objects", "RangeFile", "StoreSettings", "open_objects"]

IN_FLIGHT = 16
END = object()

Item = TypeVar("Item")


class Objects:
    """The objects of every bucket the settings reach, safe to share between threads.

    Takes `s3://bucket/key`, `s3a://…`, `file:///path` and absolute paths; keys are literal.
    Raises: ServiceUnavailable — the store does not answer or refuses us; NotFound — the object is missing;
    Unsupported — a URI of another kind, or a key that would reach another object than it names
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._places: dict[str, Place] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(IN_FLIGHT - 1, "objects")
        self._writing: set[str] = set()
        self._written = Condition()

    def read(self, uri: str) -> bytes:
        """The whole object."""
        place, key = self._find(uri)
        return place.read(key)

    def read_small(self, uri: str, most_bytes: int) -> bytes:
        """The whole object, in one request. Raises: Unsupported: it is larger than that"""
        place, key = self._find(uri)
        size_bytes, read = place.ask(key)
        if size_bytes > most_bytes:
            raise Unsupported(f"{uri!r} has {size_bytes} bytes, more than the {most_bytes} that are read.")
        return read()

    def read_many(self, uris: Iterable[str]) -> dict[str, bytes]:
        """Whole objects by URI, fetched side by side."""
        read: dict[str, bytes] = {}

        def read_one(uri: str) -> None:
            read[uri] = self.read(uri)

        _side_by_side(self._pool, read_one, uris)
        return read

    def each(self, act: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Act on every item, some of them side by side; the first failure ends it and is raised. `act` may call all but such methods."""
        _side_by_side(self._pool, act, items)

    def read_ranges(self, uri: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The parts given as (start, length), in that order."""
        place, key = self._find(uri)
        return place.read_ranges(key, ranges) if ranges else []

    def open(self, uri: str, size_bytes: int | None = None, most_bytes: int | None = None) -> BinaryIO:
        """A seekable file that fetches only what is read from it; a known size saves a request.

        Reading raises Unsupported when the object is shorter, or when more than `most_bytes` are asked for at once.
        """
        return cast("BinaryIO", RangeFile(self, uri, self.size(uri) if size_bytes is None else size_bytes, most_bytes))

    def put_new(self, uri: str, content: bytes) -> bool:
        """Write an object that must not exist yet; False when it did, and then nothing changes."""
        place, key = self._find(uri)
        with self._alone(uri):
            return place.put_new(key, content)

    def put_parts(self, uri: str, parts: Iterator[bytes]) -> None:
        """Write an object from parts as they come, a few of them in memory at once; nothing is there before the last one.

        Its name must be nobody else's: what is there may be written over. Whatever `parts` raises ends it.
        """
        place, key = self._find(uri)
        place.put_parts(key, parts)

    def put_many_new(self, items: Iterable[tuple[str, bytes]]) -> set[str]:
        """Write objects side by side; the URIs that were not there before.

        Items are taken from the iterable as there is room, so a generator never has more than a few in memory.
        The first failure ends the writing and is raised; objects written until then stay.
        """
        new: set[str] = set()

        def put_one(item: tuple[str, bytes]) -> None:
            uri, content = item
            if self.put_new(uri, content):
                new.add(uri)

        _side_by_side(self._pool, put_one, items)
        return new

    def find_etag(self, uri: str) -> str | None:
        """The tag of the object's present content, for `replace`; None when it is missing."""
        place, key = self._find(uri)
        return place.find_etag(key)

    def replace(self, uri: str, content: bytes, etag: str | None) -> str | None:
        """Write over the content that has this tag (None: over nothing); its own tag, None when that changed meanwhile.

        None may also follow a success whose answer got lost on the way: read again before deciding.
        """
        place, key = self._find(uri)
        with self._alone(uri):
            if etag is not None:
                return place.replace(key, content, etag)
            return place.find_etag(key) if place.put_new(key, content) else None

    def exists(self, uri: str) -> bool:
        """Whether the object is there."""
        place, key = self._find(uri)
        return place.find_size(key) is not None

    def find_local_path(self, uri: str) -> str | None:
        """Where the object lies on the local disk; None when it does not."""
        address = parse_uri(uri)
        return None if address.bucket else address.key

    def size(self, uri: str) -> int:
        """The object's size in bytes."""
        place, key = self._find(uri)
        size_bytes = place.find_size(key)
        if size_bytes is None:
            raise NotFound(f"The object {uri} is missing.")
        return size_bytes

    def list_under(self, prefix_uri: str) -> Iterator[tuple[str, int]]:
        """(URI, size) of every object in a folder and its folders, in no order; `a/b` does not reach `a/bc`."""
        address = parse_uri(prefix_uri)
        for key, size_bytes in self._place(address.bucket).list_under(address.key):
            yield address.format_uri(key), size_bytes

    def list_modified(self, prefix_uri: str) -> Iterator[tuple[str, datetime]]:
        """(URI, time of its last writing) of every object in a folder and its folders, unfinished ones included."""
        address = parse_uri(prefix_uri)
        for key, modified in self._place(address.bucket).list_modified(address.key):
            yield address.format_uri(key), modified

    def delete(self, uri: str) -> None:
        """Remove the object; one that is missing is fine."""
        place, key = self._find(uri)
        place.delete(key)

    def delete_many(self, uris: Iterable[str]) -> None:
        """Remove objects side by side; those that are missing are fine."""
        _side_by_side(self._pool, self.delete, uris)

    def prove(self, folder_uri: str) -> None:
        """Write, read and delete one object in a folder.

        Raises: ServiceUnavailable: the store does not do one of these, or returns something else than was written
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
        """Raise ServiceUnavailable, within about three seconds, unless the URI's bucket answers us."""
        self._place(parse_uri(uri).bucket).check()

    def _find(self, uri: str) -> tuple[Place, str]:
        address = parse_uri(uri)
        if address.key in ("", "/"):
            raise Unsupported(f"The location {uri!r} names no object; give its key too.")
        return self._place(address.bucket), address.key

    @contextmanager
    def _alone(self, uri: str) -> Generator[None]:
        """Only one of our threads writes a URI at a time: SeaweedFS lets racing conditional writes wait for seconds."""
        with self._written:
            self._written.wait_for(lambda: uri not in self._writing)
            self._writing.add(uri)
        try:
            yield
        finally:
            with self._written:
                self._writing.remove(uri)
                self._written.notify_all()

    def _place(self, bucket: str) -> Place:
        with self._lock:
            place = self._places.get(bucket)
            if place is None:
                place = S3Bucket(self._settings, bucket) if bucket else LocalDisk()
                self._places[bucket] = place
            return place


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
    """The objects these settings reach; nothing is contacted before the first use."""
    return Objects(settings)


def _side_by_side(pool: ThreadPoolExecutor, act: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Act on every item with a bounded number of threads, each taking the next item when it is free; this one never waits for a turn."""
    source, lock, failed = iter(items), Lock(), Event()

    def work() -> None:
        while not failed.is_set():
            with lock:
                item = next(source, END)
            if item is END:
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
