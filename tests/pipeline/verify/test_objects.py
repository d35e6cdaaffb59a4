"""The look at one object: whatever is odd about it is said of it alone."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from duckicelake.pipeline.objects import Objects
from duckicelake.pipeline.verify import objects
from duckicelake.pipeline.verify.footers import Shape
from duckicelake.pipeline.verify.objects import DATA, FILE, UNSEEN, look_at_object
from duckicelake.pipeline.verify.report import Finding, Verdict


def test_a_file_that_nobody_foresaw_is_told_in_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error over one of many files is no error over the table, and no difference either."""

    def fail(*_: object) -> None:
        raise TypeError("nobody thought of that")

    monkeypatch.setattr(objects, "check_parquet", fail)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    said = dict.fromkeys(("file_size_in_bytes", "lake_bytes", "lake_footer", "lake_rows", "lake_kind", "lake_format"))
    entry = {**said, "path": f"file://{path}", "file_format": "PARQUET", "content": DATA}
    assert list(look_at_object(Objects(LocalFileSystem()), entry, Shape({}, {}))) == [
        (FILE, entry["path"], "", None),
        (UNSEEN, entry["path"], "could not be looked at: TypeError: nobody thought of that", None),
    ]


def test_files_that_nobody_could_look_at_are_named() -> None:
    """Below the line that says that there are some."""
    finding = Finding(
        "main.t", "files now", Verdict.unknown, problems=("f.parquet could not be looked at",), message="at some of its files"
    )
    assert finding.describe() == ["main.t files now: could not look: at some of its files", "  f.parquet could not be looked at"]
