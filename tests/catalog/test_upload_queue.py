"""Objects on their way to the store, in boxes written beside the caller's work."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from os import fstat
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from tempfile import TemporaryFile
from threading import Event
from typing import IO

import pytest

from duckicelake.catalog import table_cache
from duckicelake.catalog.table_cache import FLUSH_BYTES, FLUSH_COUNT, UploadQueue
from duckicelake.errors import CatalogError
from duckicelake.store.objects import Objects, open_objects
from duckicelake.store.s3 import StoreSettings
from tests.support.waiting import wait_for


@pytest.fixture
def objects() -> Objects:
    """The local disk; no bucket is ever asked."""
    return open_objects(StoreSettings("http://127.0.0.1:1", "r", "k", "s"))


def test_everything_has_arrived_after_shipping(objects: Objects, tmp_path: Path) -> None:
    """Several full boxes and a last one that is not full."""
    uploads = UploadQueue(objects, set())
    uris = [f"file://{tmp_path}/{number}" for number in range(2 * FLUSH_COUNT + 7)]
    for uri in uris:
        uploads.add(uri, uri.encode())
    assert len(uploads.waiting) == 7
    uploads.flush()
    assert uploads.known_uris == set(uris)
    assert {objects.read(uri) for uri in uris} == {uri.encode() for uri in uris}


def test_large_objects_fill_a_box(objects: Objects, tmp_path: Path) -> None:
    """No more is held than the box on its way and the one that fills."""
    uploads = UploadQueue(objects, set())
    for number in range(4):
        uploads.add(f"file://{tmp_path}/{number}", bytes(FLUSH_BYTES // 2))
        assert uploads.waiting_bytes < FLUSH_BYTES
    uploads.flush()
    assert len(list(tmp_path.iterdir())) == 4


def test_what_is_known_or_on_its_way_is_not_sent_again(objects: Objects, tmp_path: Path) -> None:
    """An object's name says what is in it."""
    known, other = f"file://{tmp_path}/known", f"file://{tmp_path}/other"
    uploads = UploadQueue(objects, {known})
    for uri in (known, other, other):
        uploads.add(uri, b"x")
    assert list(uploads.waiting) == [other]
    uploads.flush()
    uploads.add(other, b"x")
    uploads.flush()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_failure_reaches_the_caller(objects: Objects, tmp_path: Path) -> None:
    """At the next box or at the end, and what failed is not taken for written."""
    (tmp_path / "file").write_bytes(b"")
    uploads = UploadQueue(objects, set())
    for number in range(FLUSH_COUNT):
        uploads.add(f"file://{tmp_path}/file/{number}", b"x")
    with pytest.raises((CatalogError, OSError)):
        uploads.flush()
    assert uploads.known_uris == set()


def write_after(monkeypatch: pytest.MonkeyPatch, may_write: Event) -> None:
    """Let the store write nothing before an event."""
    put_many = Objects.put_many_new

    def put_late(objects: Objects, many: Sequence[tuple[str, bytes]]) -> None:
        assert may_write.wait(60)
        put_many(objects, many)

    monkeypatch.setattr(Objects, "put_many_new", put_late)


def test_a_slow_store_keeps_nobody_from_adding(objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes the objects has a transaction open: full batches lie on the local disk until the store takes them."""
    may_write = Event()
    write_after(monkeypatch, may_write)
    uploads = UploadQueue(objects, set())
    uris = [f"file://{tmp_path}/{number}" for number in range(4 * FLUSH_COUNT + 7)]
    for uri in (*uris, *uris):
        uploads.add(uri, uri.encode())
    assert (len(uploads.sent), len(uploads.spooled), len(uploads.waiting)) == (FLUSH_COUNT, 3, 7)
    assert list(tmp_path.iterdir()) == []
    may_write.set()
    uploads.flush()
    assert uploads.known_uris == set(uris)
    assert {objects.read(uri) for uri in uris} == {uri.encode() for uri in uris}
    assert len(list(tmp_path.iterdir())) == len(uris)


def test_without_room_on_the_local_disk_adding_waits_for_the_store(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the second batch for the temporary file only a part fits: the store gets the first one, then all of the second."""
    files, is_full, put_many, batches = list[IO[bytes]](), Event(), Objects.put_many_new, list[str]()
    content, limit = bytes(range(256)) * 4, FLUSH_COUNT * 1536 + 100

    def open_file(**options: int) -> IO[bytes]:
        files.append(TemporaryFile(**options))
        return files[-1]

    def put_late(objects: Objects, many: Sequence[tuple[str, bytes]]) -> None:
        if not is_full.is_set():
            wait_for(lambda: bool(files) and fstat(files[0].fileno()).st_size == limit, "the temporary file to be full")
        is_full.set()
        batches.append(many[0][0])
        put_many(objects, many)

    monkeypatch.setattr(Objects, "put_many_new", put_late)
    monkeypatch.setattr(table_cache, "TemporaryFile", open_file)
    uploads = UploadQueue(objects, set())
    uris = [f"file://{tmp_path}/{number}" for number in range(4 * FLUSH_COUNT + 7)]
    with files_limited_to(limit):
        for number, uri in enumerate(uris):
            uploads.add(uri, number.to_bytes(4) + content[4:])
        uploads.flush()
    assert uploads.known_uris == set(uris)
    assert batches == uris[::FLUSH_COUNT]
    assert [int.from_bytes(objects.read(uri)[:4]) for uri in uris] == list(range(len(uris)))
    assert {len(objects.read(uri)) for uri in uris} == {len(content)}


@contextmanager
def files_limited_to(size_bytes: int) -> Generator[None]:
    """Let no file of this process grow beyond a size, as on a disk that is full."""
    soft, hard = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, (soft, hard))


def test_no_folder_for_temporary_files_is_needed(objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's root may be read-only: a batch that is full too early waits for the store."""
    is_asked = Event()

    def open_file(**options: int) -> IO[bytes]:
        is_asked.set()
        return TemporaryFile(dir=tmp_path / "missing", **options)

    write_after(monkeypatch, is_asked)
    monkeypatch.setattr(table_cache, "TemporaryFile", open_file)
    uploads = UploadQueue(objects, set())
    uris = [f"file://{tmp_path}/{number}" for number in range(2 * FLUSH_COUNT + 7)]
    for uri in uris:
        uploads.add(uri, uri.encode())
    uploads.flush()
    assert uploads.known_uris == set(uris)


def test_a_queue_may_be_used_after_a_flush(objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new temporary file is read from its beginning."""
    may_write = Event()
    write_after(monkeypatch, may_write)
    uploads = UploadQueue(objects, set())
    uris = [f"file://{tmp_path}/{number}" for number in range(4 * FLUSH_COUNT)]
    for half in (uris[: 2 * FLUSH_COUNT], uris[2 * FLUSH_COUNT :]):
        may_write.clear()
        for uri in half:
            uploads.add(uri, uri.encode())
        may_write.set()
        uploads.flush()
    assert [objects.read(uri) for uri in uris] == [uri.encode() for uri in uris]


def test_nothing_to_ship(objects: Objects) -> None:
    """An empty outbox is shipped at once."""
    uploads = UploadQueue(objects, set())
    uploads.flush()
    assert uploads.known_uris == set()


def test_what_nothing_names_waits_until_something_does(objects: Objects, tmp_path: Path) -> None:
    """Held objects are not written with the others, and when they are let go, then with what they name."""
    uploads = UploadQueue(objects, set())
    file, manifest, other, plain = (f"file://{tmp_path}/{name}" for name in ("file", "manifest", "other", "plain"))
    with uploads.holding(is_hidden=True):
        uploads.add(file, b"f")
        uploads.add(manifest, b"m", [file, plain])
        uploads.add(other, b"o")
        uploads.release([manifest])
    uploads.add(plain, b"p")
    uploads.flush()
    assert uploads.known_uris == {plain}
    later = UploadQueue(objects, uploads.known_uris, held=uploads.list_held([manifest]))
    assert later.held.keys() == {manifest, file}
    later.release([manifest, other])
    later.flush()
    assert later.known_uris == {plain, manifest, file}
    assert objects.read(file) == b"f"


def test_no_more_is_held_than_a_box(objects: Objects, tmp_path: Path) -> None:
    """What is too much to be kept is written at once."""
    uploads = UploadQueue(objects, set())
    with uploads.holding(is_hidden=True):
        for number in range(3):
            uploads.add(f"file://{tmp_path}/{number}", bytes(FLUSH_BYTES // 2))
    assert len(uploads.held) == 2
    uploads.flush()
    assert len(uploads.known_uris) == 1
