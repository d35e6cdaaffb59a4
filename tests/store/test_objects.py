"""Objects: the promises that hold on S3 and on the local disk alike."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.errors import NotFound, ServiceUnavailable, Unsupported
from duckicelake.store.objects import IN_FLIGHT, Objects, StoreSettings, open_objects
from tests.support.shared_stack import SharedStack


def connect(stack: SharedStack) -> Objects:
    """Objects as a server has them."""
    store = stack.store
    return open_objects(StoreSettings(store.endpoint, store.region, store.access_key_id, store.secret_access_key))


@pytest.fixture
def objects(stack: SharedStack) -> Objects:
    """The objects of the shared S3, and of the local disk."""
    return connect(stack)


@pytest.fixture
def other_server(stack: SharedStack) -> Objects:
    """The same objects as another server sees them."""
    return connect(stack)


@pytest.fixture(params=["s3", "file", "path"])
def folder(request: pytest.FixtureRequest, stack: SharedStack, tmp_path: Path) -> str:
    """A folder's URI in each kind of place."""
    return {
        "s3": f"s3://{stack.store.bucket}/objects{tmp_path}",
        "file": f"file://{tmp_path}/deep/folder",
        "path": f"{tmp_path}/deep/folder",
    }[request.param]


def test_an_object_is_written_once(objects: Objects, folder: str) -> None:
    """The second writer learns that he is second, and the first one's bytes stay."""
    uri = f"{folder}/metadata/v1.metadata.json"
    assert objects.put_new(uri, b"first") is True
    assert objects.put_new(uri, b"second") is False
    assert objects.read(uri) == b"first"


def test_parts_become_one_object(objects: Objects, folder: str) -> None:
    """Few or many bytes of them, and none at all; nobody sees the object before the last part."""
    large = [bytes([number]) * 3_000_000 for number in range(7)]

    def watch(uri: str, parts: list[bytes]) -> Iterator[bytes]:
        for part in parts:
            assert not objects.exists(uri)
            yield part

    for name, parts in (("few", [b"a", b"", b"bc"]), ("many", large), ("none", [])):
        uri = f"{folder}/parts/{name}"
        objects.put_parts(uri, watch(uri, parts))
        assert objects.read(uri) == b"".join(parts)


def test_parts_that_break_off_leave_nothing(objects: Objects, folder: str) -> None:
    """Early or late; who wrote them learns why."""
    for count in (0, 1, 7):
        uri = f"{folder}/broken/{count}"

        def break_off(count: int = count) -> Iterator[bytes]:
            yield from (b"x" * 3_000_000 for _ in range(count))
            raise Unsupported("No more.")

        with pytest.raises(Unsupported, match="No more"):
            objects.put_parts(uri, break_off())
        assert not objects.exists(uri)
    assert [uri for uri, _ in objects.list_under(f"{folder}/broken")] == []


def test_an_empty_object_is_an_object(objects: Objects, folder: str) -> None:
    """No bytes is a content like any other."""
    assert objects.put_new(f"{folder}/empty", b"")
    assert objects.read(f"{folder}/empty") == b""
    assert objects.size(f"{folder}/empty") == 0


def test_a_missing_object_is_named(objects: Objects, folder: str) -> None:
    """What is not there is NotFound to read and None or False to ask about."""
    uri = f"{folder}/nothing"
    for act in (objects.read, objects.size):
        with pytest.raises(NotFound, match="nothing"):
            act(uri)
    with pytest.raises(NotFound):
        objects.read_ranges(uri, [(0, 1)])
    assert objects.exists(uri) is False
    assert objects.find_etag(uri) is None
    objects.delete(uri)


def test_an_object_that_is_too_large_is_not_read(objects: Objects, folder: str) -> None:
    """Whoever takes what strangers wrote says how much of it; a missing object is told apart."""
    uri = f"{folder}/a"
    objects.put_new(uri, b"12345")
    assert objects.read_small(uri, 5) == b"12345"
    with pytest.raises(Unsupported, match="has 5 bytes, more than the 4"):
        objects.read_small(uri, 4)
    with pytest.raises(NotFound, match="nothing"):
        objects.read_small(f"{folder}/nothing", 4)


def test_a_deleted_object_is_gone_and_can_be_written_anew(objects: Objects, folder: str) -> None:
    """Deleting ends the write-once promise of a URI."""
    uri = f"{folder}/a"
    assert objects.put_new(uri, b"1")
    objects.delete(uri)
    assert objects.exists(uri) is False
    assert objects.put_new(uri, b"2")
    assert objects.read(uri) == b"2"


def test_replace_compares_before_it_swaps(objects: Objects, folder: str) -> None:
    """Only the tag of the present content lets a writer through."""
    uri = f"{folder}/version-hint.text"
    assert objects.replace(uri, b"1", "no-such-tag") is None
    first = objects.replace(uri, b"1", None)
    assert first is not None
    assert objects.replace(uri, b"2", None) is None
    assert first == objects.find_etag(uri)
    second = objects.replace(uri, b"2", first)
    assert second is not None
    assert objects.replace(uri, b"3", first) is None
    assert second == objects.find_etag(uri)
    assert objects.read(uri) == b"2"


def race(folder: str, writers: list[Objects]) -> None:
    """Let the writers create one object and then swap its content, each time starting together."""
    uri, barrier = f"{folder}/raced", Barrier(len(writers))

    def create(number: int) -> bool:
        barrier.wait()
        return writers[number].put_new(uri, b"%d" % number)

    def swap(number: int) -> bool:
        seen = writers[number].find_etag(uri)
        barrier.wait()
        return writers[number].replace(uri, b"swap %d" % number, seen) is not None

    with ThreadPoolExecutor(len(writers)) as threads:
        for act, content in ((create, b"%d"), (swap, b"swap %d")):
            won = list(threads.map(act, range(len(writers))))
            assert won.count(True) == 1
            assert writers[0].read(uri) == content % won.index(True)


def test_of_many_threads_at_once_one_wins(objects: Objects, folder: str) -> None:
    """Write-once and compare-and-swap hold between threads that start together."""
    race(folder, [objects] * 8)


def test_of_two_servers_at_once_one_wins(objects: Objects, other_server: Objects, folder: str) -> None:
    """They hold between servers, which share nothing but the store."""
    race(folder, [objects, other_server])


def test_many_objects_are_written_and_the_new_ones_named(objects: Objects, folder: str) -> None:
    """put_many_new says which were not there before, and read_many brings all of them."""
    uris = [f"{folder}/many/{number:03d}" for number in range(50)]
    assert objects.put_many_new([(uris[7], b"old")]) == {uris[7]}
    assert objects.put_many_new((uri, uri.encode()) for uri in uris) == set(uris) - {uris[7]}
    assert objects.read_many(uris) == {uri: uri.encode() for uri in uris} | {uris[7]: b"old"}
    assert objects.put_many_new([]) == set()


def test_a_generator_of_objects_is_taken_as_there_is_room(objects: Objects, folder: str) -> None:
    """However many objects come, only a few are in memory."""
    ahead = 0

    def make() -> Iterator[tuple[str, bytes]]:
        nonlocal ahead
        for number in range(100):
            written = sum(1 for _ in objects.list_under(f"{folder}/lazy"))
            ahead = max(ahead, number - written)
            yield f"{folder}/lazy/{number}", b"x"

    assert len(objects.put_many_new(make())) == 100
    assert 0 <= ahead <= IN_FLIGHT


def test_the_first_failure_ends_the_writing(objects: Objects, folder: str) -> None:
    """A failing item is raised, and a long row of others is not written to the end."""
    taken = 0

    def make() -> Iterator[tuple[str, bytes]]:
        nonlocal taken
        for taken in range(1000):
            yield (f"{folder}/x/{taken}" if taken != 5 else f"{folder}/x/../y", b"x")

    with pytest.raises(Unsupported):
        objects.put_many_new(make())
    assert taken < 200


def test_a_folder_lists_what_lies_below_it(objects: Objects, folder: str) -> None:
    """Listing goes by whole names, all levels down, with sizes, in the spelling of the question."""
    kept = {f"{folder}/a/b/1": 1, f"{folder}/a/b/c/ü #2%20": 2, f"{folder}/a/b/c/3": 3}
    for uri, size_bytes in kept.items():
        objects.put_new(uri, b"x" * size_bytes)
    objects.put_new(f"{folder}/a/bc/4", b"x")
    assert dict(objects.list_under(f"{folder}/a/b")) == kept
    assert dict(objects.list_under(f"{folder}/a/b/")) == kept
    assert list(objects.list_under(f"{folder}/nowhere")) == []


@pytest.mark.parametrize("key", ["a//b", "a/../b", "./a", "a/..", "a\nb", "a\x7f", "", "/a"])
def test_a_key_that_clients_fold_is_refused(objects: Objects, folder: str, key: str) -> None:
    """What might reach another object than it names is not touched."""
    with pytest.raises(Unsupported):
        objects.put_new(f"{folder}/{key}" if key else "s3://bucket", b"x")


@pytest.mark.parametrize("uri", ["http://host/a", "gs://bucket/a", "relative/path", "s3:///a", "s3://", "file://host/a", ""])
def test_a_store_of_another_kind_is_named(objects: Objects, uri: str) -> None:
    """The refusal shows the URI and what would do."""
    with pytest.raises(Unsupported, match="use s3://"):
        objects.read(uri)


def test_a_file_is_read_in_ranges(objects: Objects, folder: str, tmp_path: Path) -> None:
    """Parquet's footer and one column come without the rest of the object."""
    uri = f"{folder}/letters"
    objects.put_new(uri, b"abcdefghij")
    assert objects.read_ranges(uri, [(7, 2), (0, 3)]) == [b"hi", b"abc"]
    assert objects.read_ranges(uri, []) == []
    file = objects.open(uri)
    assert (file.read(2), file.seek(-3, 2), file.read(), file.read(5)) == (b"ab", 7, b"hij", b"")
    assert (file.seek(1), file.seek(2, 1), file.tell(), file.read(1)) == (1, 3, 3, b"d")
    with pytest.raises(NotFound):
        objects.open(f"{folder}/nothing")


def test_an_unfinished_file_is_no_object(objects: Objects, tmp_path: Path) -> None:
    """What a crash leaves behind is neither listed nor taken for content."""
    objects.put_new(f"{tmp_path}/done", b"x")
    (tmp_path / ".part-1234.tmp").write_bytes(b"ha")
    assert [uri for uri, _ in objects.list_under(str(tmp_path))] == [f"{tmp_path}/done"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part-1234.tmp", "done"]


def test_a_disk_that_refuses_is_unavailable(objects: Objects, tmp_path: Path) -> None:
    """A folder that cannot be made is the disk's fault, not the object's."""
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(ServiceUnavailable, match="file/below"):
        objects.put_new(f"{tmp_path}/file/below", b"x")
    assert objects.exists(f"{tmp_path}/file/below") is False
    with pytest.raises(NotFound):
        objects.read(f"{tmp_path}")


def test_pyarrow_reads_through_an_object(objects: Objects, folder: str, tmp_path: Path) -> None:
    """A RangeFile is a file for pyarrow; the known size saves the look-up."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": list(range(1000)), "b": ["x" * 100] * 1000}), path)
    objects.put_new(f"{folder}/t.parquet", path.read_bytes())
    with objects.open(f"{folder}/t.parquet", path.stat().st_size) as file:
        assert pq.ParquetFile(file).read(columns=["a"]).column("a").to_pylist() == list(range(1000))
