"""Which delete files count for a data file: by sequence number, partition and the file that they name."""

from dataclasses import replace
from typing import Any

import pytest

from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.scan_tasks import FILE_PATH_ID, DeleteIndex, ScanFile


def file(number: int, content: int = 0, partition: tuple[object, ...] = (), spec_id: int = 0, **more: Any) -> ScanFile:
    """A file of a sequence number."""
    known = {"file_path": f"{content}-{number}", "file_format": "PARQUET", "record_count": 1, "file_size_in_bytes": 1} | more
    return ScanFile(DataFile(content=content, partition=partition, **known), spec_id, 1, number, True, not partition)


DATA = file(5, partition=("a",), spec_id=1)
NAMED = {"referenced_data_file": DATA.file.file_path}
BOUNDED = {bound: {FILE_PATH_ID: DATA.file.file_path.encode()} for bound in ("lower_bounds", "upper_bounds")}
COUNTING = [
    pytest.param(file(5, 1, ("a",), 1), True, id="positions of the same commit"),
    pytest.param(file(4, 1, ("a",), 1), False, id="older positions"),
    pytest.param(file(6, 1, ("b",), 1), False, id="positions of another partition"),
    pytest.param(file(6, 1, ("a",), 2), False, id="positions of another spec"),
    pytest.param(file(6, 1), False, id="positions of no partition"),
    pytest.param(file(5, 1, **NAMED), True, id="positions of the file by its name"),
    pytest.param(file(6, 1, **BOUNDED), True, id="positions of the file by equal bounds"),
    pytest.param(file(4, 1, **NAMED), False, id="older positions of the file"),
    pytest.param(file(6, 1, ("a",), 1, referenced_data_file="other"), False, id="positions of another file"),
    pytest.param(file(5, 1, file_format="PUFFIN", **NAMED), True, id="vector"),
    pytest.param(file(4, 1, file_format="PUFFIN", **NAMED), False, id="older vector"),
    pytest.param(file(6, 2, ("a",), 1), True, id="equality"),
    pytest.param(file(5, 2, ("a",), 1), False, id="equality of the same commit"),
    pytest.param(file(6, 2, ("b",), 1), False, id="equality of another partition"),
    pytest.param(file(6, 2), True, id="equality everywhere"),
    pytest.param(file(5, 2), False, id="equality everywhere of the same commit"),
]


@pytest.mark.parametrize(("delete", "counts"), COUNTING)
def test_deletes_count_as_the_specification_says(delete: ScanFile, counts: bool) -> None:
    """Whatever else there is."""
    others = [file(9, 1, ("b",), 1), file(9, 2, ("b",), 1), file(9, 1, referenced_data_file="another")]
    assert DeleteIndex([*others, delete]).find(DATA) == [delete] * counts


def test_a_spec_that_tells_no_files_apart_has_deletes_of_all() -> None:
    """Though it has a field, as after a column of a version 1 table was taken out of it."""
    delete = replace(file(6, 2, (None,), 2), is_global=True)
    assert DeleteIndex([delete]).find(DATA) == [delete]


def test_nan_is_a_partition_of_its_own() -> None:
    """Its deletes are found, though it is like no number."""
    delete = file(6, 1, (float("nan"),), 1)
    assert DeleteIndex([delete]).find(file(5, partition=(float("nan"),), spec_id=1)) == [delete]
    assert DeleteIndex([delete]).find(DATA) == []


def test_a_vector_holds_what_positions_said_before() -> None:
    """Of several, the newest counts; equality deletes count beside it."""
    old, new = (file(number, 1, file_format="PUFFIN", **NAMED) for number in (5, 7))
    positions, equality = file(6, 1, **NAMED), file(8, 2)
    assert DeleteIndex([new, positions, equality, old]).find(DATA) == [equality, new]
