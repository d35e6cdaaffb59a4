"""Logs of Delta tables say which files count, and these are files that Spark reads as they are named, from the store that was meant."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from duckicelake.errors import BadRequest, ServiceUnavailable, Unsupported
from duckicelake.pipeline.common.rest import RestCatalog, TableIdent
from duckicelake.pipeline.common.storage import open_store
from duckicelake.pipeline.transfer.catalogs import Entry
from duckicelake.pipeline.transfer.copies import Store
from duckicelake.pipeline.transfer.delta import DeltaFolders, check_paths, check_whole, format_keys, format_physical, read_log
from tests.pipeline.transfer.folders.test_delta import lay_out


def list_log(place: Path) -> list[str]:
    """What lies in a table's log."""
    return [path.name for path in (place / "_delta_log").iterdir()]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        pytest.param("s3://lake/t/_a.parquet", "passes over", id="underscore"),
        pytest.param("s3://lake/t/.a.parquet", "passes over", id="dot"),
        pytest.param("s3://lake/t/a.parquet._COPYING_", "passes over", id="half a copy"),
        pytest.param("s3://lake/t/sub/", "passes over", id="a folder"),
        pytest.param("s3://lake/t/p=//a.parquet", "that it changes", id="no name between slashes"),
        pytest.param("s3://lake/t/../u/a.parquet", "that it changes", id="upwards"),
        pytest.param("file:///etc/a.parquet", "own store", id="the disk of whoever imports"),
        pytest.param("/etc/a.parquet", "own store", id="the disk, without a scheme"),
        pytest.param("http://127.0.0.1/a.parquet", "own store", id="a server"),
    ],
)
def test_a_file_that_spark_would_not_read_so_refuses_the_table(path: str, said: str) -> None:
    """Else its rows were lost, or the rows that vectors delete in it came back, or a log named what only the reader may see."""
    with pytest.raises(Unsupported, match=said):
        check_paths("s3://lake/t", ["s3://lake/t/a.parquet", path])


def test_files_that_spark_reads_are_taken() -> None:
    """Also those of the table that a shallow clone is of, and with names in which = follows _."""
    check_paths("s3://lake/t", ["s3a://other/u/_dir/p=.x/a.parquet", "s3://lake/t/_p=1.parquet"])
    check_paths("/data/t", ["/data/t/a.parquet", "file:///data/u/a.parquet", "file:/data/u/b.parquet"])


def test_a_log_names_a_file_that_spark_passes_over(tmp_path: Path) -> None:
    """It is found where the log is read."""
    place = tmp_path / "t"
    write_deltalake(place, pa.table({"id": [1]}))
    first = place / "_delta_log" / f"{0:020}.json"
    first.write_text(first.read_text().replace('"path":"part', '"path":"_part'))
    with pytest.raises(Unsupported, match="passes over"):
        read_log(str(place), list_log(place), {})


def test_a_folder_may_have_another_name(tmp_path: Path) -> None:
    """The library follows links in it, and deleted rows are of files by their names."""
    lay_out(tmp_path / "tables", ["vectors"])
    (tmp_path / "link").symlink_to(tmp_path / "tables")
    place = tmp_path / "link" / "vectors"
    state = read_log(str(place), list_log(place), {})
    assert sorted(map(list, state.read_vectors().values())) == [[0, 3, 6, 9], [2, 5, 8]]


@pytest.mark.parametrize("mode", [None, "none"])
def test_a_mapping_that_was_given_up_says_nothing(mode: str | None) -> None:
    """Its words may be left in the schema; files have the columns under their own names, at every level."""
    inner = {"name": "x", "type": "short", "nullable": True, "metadata": {"delta.columnMapping.physicalName": "c2"}}
    struct = {"type": "struct", "fields": [inner]}
    outer = {"name": "a", "type": struct, "nullable": True, "metadata": {"delta.columnMapping.physicalName": "c1"}}
    (found,) = format_physical({"type": "struct", "fields": [outer]}, mode)["fields"]
    assert (found["name"], found["type"]["fields"][0]["name"]) == ("a", "x")


@pytest.mark.parametrize(
    ("parts", "is_whole"),
    [
        pytest.param([1, 2], True, id="all of them"),
        pytest.param([2], False, id="one is missing"),
    ],
)
def test_a_checkpoint_has_all_its_parts(parts: list[int], is_whole: bool) -> None:
    """The library passes over one that has not, and takes the commits that are left for whole where a checksum file says the rest."""
    names = [f"{9:020}.checkpoint.{part:010}.{2:010}.parquet" for part in parts]
    names += [f"{8:020}.checkpoint.{1:010}.{2:010}.parquet", f"{10:020}.json", f"{10:020}.crc"]
    if is_whole:
        check_whole(names)
        return
    with pytest.raises(BadRequest, match="neither a first commit nor a checkpoint"):
        check_whole(names)


def test_one_state_is_kept_at_a_time(tmp_path: Path) -> None:
    """Of many tables each is read, moved and forgotten."""
    folders = DeltaFolders(str(tmp_path), Store(RestCatalog("", ""), {}, lambda uri, content: False))
    for name in ("a", "b"):
        write_deltalake(tmp_path / name, pa.table({"id": [1]}))
        folders.load(Entry(TableIdent((), name), place=f"{tmp_path}/{name}"))
    assert list(folders.states) == [f"{tmp_path}/b"]


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[str]]]:
    """A store that refuses everything and repeats what was asked, by its endpoint, and the paths that it was asked for."""
    asked: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = f"<Error>{self.headers}</Error>".encode()
            self.send_response(403)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as running:
        thread = Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()
        thread.join()


def test_a_log_is_read_from_the_store_that_its_files_are_read_from(
    refusing: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever store the environment names; and who is refused hears so, without what was sent along."""
    endpoint, asked = refusing
    given = {"s3.endpoint": endpoint, "s3.access-key-id": "key", "s3.secret-access-key": "hidden", "s3.session-token": "token-1"}
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    with pytest.raises(ServiceUnavailable, match="403 Forbidden") as told:
        read_log("s3://lake/t", [f"{0:020}.json"], format_keys(open_store(given)))
    assert asked[0] == "/lake/t/_delta_log/_last_checkpoint"
    assert not [word for word in ("hidden", "token-1", "\n", "\x1b", "<") if word in told.value.message]
