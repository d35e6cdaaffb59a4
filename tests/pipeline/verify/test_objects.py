"""The look at one object: whatever is odd about it is said of it alone."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from duckicelake.pipeline.common.storage import StoredFiles
from duckicelake.pipeline.verify import files
from duckicelake.pipeline.verify.files import DATA, FILE, PROBLEM, UNSEEN, check_object
from duckicelake.pipeline.verify.job import Finding, VerifyVerdict
from duckicelake.pipeline.verify.parquet_checks import FileExpectations

SAID = dict.fromkeys(("file_size_in_bytes", "lake_bytes", "lake_footer", "lake_rows", "lake_kind", "lake_format", "content_offset"))
PARQUET = {**SAID, "file_format": "PARQUET", "content": None}
VECTOR = {**SAID, "file_format": "PUFFIN", "content": 1, "referenced_data_file": "a"}


class Failing:
    """A store that ends giving a file: when it is opened, when its size is asked for, or once some reads were answered."""

    def __init__(self, error: OSError, reads: int = -2) -> None:
        self.error, self.reads, self.closed = error, reads, False

    def open_input_file(self, path: str) -> Any:
        if self.reads == -2:
            raise self.error
        self.file = Path(path).open("rb")
        return self if self.reads == -1 else pa.PythonFile(self, "r")

    def read(self, count: int | None = None) -> bytes:
        self.reads -= 1
        if self.reads < 0:
            raise self.error
        return self.file.read(count)

    def size(self) -> int:
        raise self.error

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        self.closed = True

    def __enter__(self) -> "Failing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_rows(tmp_path: Path) -> Path:
    """A file of one row."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    return path


@pytest.mark.parametrize("entry", [pytest.param(PARQUET, id="parquet"), pytest.param(VECTOR, id="vector")])
@pytest.mark.parametrize("reads", [pytest.param(-2, id="open"), pytest.param(-1, id="size"), pytest.param(0, id="read")])
@pytest.mark.parametrize("error", [OSError("SLOW_DOWN"), PermissionError("ACCESS_DENIED")], ids=["throttled", "refused"])
def test_a_store_that_does_not_give_a_file_is_no_difference(entry: dict[str, Any], reads: int, error: OSError, tmp_path: Path) -> None:
    """Nobody looked at it, whatever the store's reason is."""
    store: Any = Failing(error, reads)
    found = list(check_object(StoredFiles(store), {**entry, "path": f"file://{write_rows(tmp_path)}"}, FileExpectations({}, {})))
    assert [kind for kind, *_ in found] == [FILE, UNSEEN]
    assert str(error) in found[1][2]


def test_a_file_that_the_store_does_not_have_is_a_difference(tmp_path: Path) -> None:
    """Which is known for certain."""
    entry = {**PARQUET, "path": f"file://{tmp_path}/gone.parquet"}
    assert list(check_object(StoredFiles(LocalFileSystem()), entry, FileExpectations({}, {})))[1:] == [
        (PROBLEM, entry["path"], "is missing", None)
    ]


@pytest.mark.parametrize("damage", [pytest.param(0, id="magic"), pytest.param(12, id="footer")])
def test_a_damaged_file_is_a_difference(damage: int, tmp_path: Path) -> None:
    """Its bytes are there, though Arrow calls some damage an error of the system."""
    path = write_rows(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - damage - 8] + b"\xff" * 8 + whole[len(whole) - damage :])
    seen = list(check_object(StoredFiles(LocalFileSystem()), {**PARQUET, "path": f"file://{path}"}, FileExpectations({}, {})))
    assert [(kind, text.partition(":")[0]) for kind, _, text, _ in seen] == [(FILE, ""), (PROBLEM, "cannot be read")]


def test_a_file_that_nobody_foresaw_is_told_in_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error over one of many files is no error over the table, and no difference either."""

    def fail(*_: object) -> None:
        raise TypeError("nobody thought of that")

    monkeypatch.setattr(files, "check_parquet", fail)
    entry = {**PARQUET, "path": f"file://{write_rows(tmp_path)}", "content": DATA}
    assert list(check_object(StoredFiles(LocalFileSystem()), entry, FileExpectations({}, {}))) == [
        (FILE, entry["path"], "", None),
        (UNSEEN, entry["path"], "could not be looked at: TypeError: nobody thought of that", None),
    ]


def test_files_that_nobody_could_look_at_are_named() -> None:
    """Below the line that says that there are some."""
    finding = Finding(
        "main.t", "files now", VerifyVerdict.unknown, problems=("f.parquet could not be looked at",), message="at some of its files"
    )
    assert finding.describe() == ["main.t files now: could not look: at some of its files", "  f.parquet could not be looked at"]
