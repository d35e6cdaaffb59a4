"""Checksums of rows that do not depend on their order: how many there are and the sum of their numbers, by bin and by partition."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from duckicelake.iceberg.transforms import DAY_MICROS, HOUR_MICROS, MICRO_STAMPS
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.pipeline.verify.hashing import Hashes, hash_rows, hash_values, mix, read_plain

BINS = 4096
_BIN_SHIFT = np.uint64(52)
_WRAP = 1 << 64
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_UNITS = {"year": "Y", "month": "M"}
_SHOWN = {"year": 4, "month": 7, "day": 10, "hour": 13}
GROUPED_BY = ("identity", "year", "month", "day", "hour")
"""Transforms that rows are grouped by; the others give no partition of which anybody knows the name."""

TALLY_SCHEMA = pa.schema([("key", pa.int64()), ("label", pa.string()), ("rows", pa.int64()), ("high", pa.int64()), ("low", pa.int64())])
TALLY_DDL = "key bigint, label string, rows bigint, high bigint, low bigint"
PICKED_SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
PICKED_DDL = "number bigint, text string"


@dataclass(frozen=True, slots=True)
class GroupField:
    """A part of the partition: a column and its transform."""

    column: str
    form: PrimitiveType
    transform: str


@dataclass(frozen=True, slots=True)
class Look:
    """What of the rows counts: the columns, and what they are grouped by."""

    fields: tuple[NestedField, ...]
    groups: tuple[GroupField, ...] = ()


@dataclass(frozen=True, slots=True)
class Total:
    """How many rows, and the sum of their numbers."""

    rows: int = 0
    total: int = 0

    def add(self, rows: int, total: int) -> "Total":
        """This and more."""
        return Total(self.rows + rows, (self.total + total) % _WRAP)


@dataclass(slots=True)
class Tally:
    """The checksums of the rows seen so far. A row's bin follows from its number, so rows that differ are in bins that differ."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    sums: Hashes = field(default_factory=lambda: np.zeros(BINS, np.uint64))
    groups: dict[int, Total] = field(default_factory=dict[int, Total])
    labels: dict[int, str] = field(default_factory=dict[int, str])

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    def add(self, rows: pa.RecordBatch, look: Look) -> None:
        """Count the rows of a batch."""
        numbers = hash_rows(rows, look.fields)
        bins = find_bins(numbers)
        self.counts += np.bincount(bins, minlength=BINS)
        np.add.at(self.sums, bins, numbers)
        if look.groups and rows.num_rows:
            self._add_groups(rows, numbers, look.groups)

    def merge(self, table: pa.Table) -> "Tally":
        """Count what others counted."""
        groups: Any = table.filter(pc.is_valid(table.column("label")))
        for row in groups.to_pylist():
            key, total = row["key"] % _WRAP, (row["high"] * (1 << 32) + row["low"]) % _WRAP
            self.groups[key] = self.groups.get(key, Total()).add(row["rows"], total)
            self.labels[key] = row["label"]
        bins: Any = table.filter(pc.is_null(table.column("label")))
        keys, rows, high, low = (bins.column(name).to_numpy() for name in ("key", "rows", "high", "low"))
        np.add.at(self.counts, keys, rows)
        np.add.at(self.sums, keys, (high.astype(np.uint64) << _HALF) + low.astype(np.uint64))
        return self

    def write(self) -> pa.RecordBatch:
        """The checksums as rows; the sums in two halves, whose own sums do not overflow."""
        used = np.flatnonzero(self.counts)
        keys = np.concatenate([used.astype(np.uint64), np.array(list(self.groups), np.uint64)])
        sums = np.concatenate([self.sums[used], np.array([group.total for group in self.groups.values()], np.uint64)])
        rows = np.concatenate([self.counts[used], np.array([group.rows for group in self.groups.values()], np.int64)])
        labels = [None] * len(used) + [self.labels[key] for key in self.groups]
        parts: list[Any] = [
            keys.view(np.int64),
            pa.array(labels, pa.string()),
            rows,
            (sums >> _HALF).view(np.int64),
            (sums & _LOW).view(np.int64),
        ]
        return pa.RecordBatch.from_arrays([pa.array(part) for part in parts], schema=TALLY_SCHEMA)

    def _add_groups(self, rows: pa.RecordBatch, numbers: Hashes, groups: Sequence[GroupField]) -> None:
        keys = np.zeros(rows.num_rows, np.uint64)
        for part in groups:
            keys = mix(keys + hash_values(*_transform(rows, part)))
        found, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
        counts, sums = np.bincount(inverse), np.zeros(len(found), np.uint64)
        np.add.at(sums, inverse, numbers)
        for key, first, count, total in zip(found.tolist(), firsts.tolist(), counts.tolist(), sums.tolist(), strict=True):
            self.groups[key] = self.groups.get(key, Total()).add(count, total)
            if key not in self.labels:
                self.labels[key] = ", ".join(_describe(rows.slice(first, 1), part) for part in groups)


def find_bins(numbers: Hashes) -> NDArray[np.int64]:
    """The bin of each row."""
    return (numbers >> _BIN_SHIFT).astype(np.int64)


def _transform(rows: Any, part: GroupField) -> tuple[Any, PrimitiveType]:
    values: Any = rows.column(rows.schema.get_field_index(part.column))
    if part.transform == "identity":
        return values, part.form
    micros = read_plain(_as_stamps(values, part.form), np.dtype(np.int64))
    if part.transform in _UNITS:
        units = micros.view("datetime64[us]").astype(f"datetime64[{_UNITS[part.transform]}]").astype(np.int64)
    else:
        units = micros // (DAY_MICROS if part.transform == "day" else HOUR_MICROS)
    return pa.array(units, mask=~values.is_valid().to_numpy(zero_copy_only=False)), PrimitiveType("long")


def _as_stamps(values: Any, form: PrimitiveType) -> Any:
    """Dates and timestamps as timestamps without a zone."""
    return values.cast(pa.timestamp("us", tz=None if form.name == "date" else values.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))


def _describe(row: Any, part: GroupField) -> str:
    values: Any = row.column(row.schema.get_field_index(part.column))
    is_stamp = part.form.name in MICRO_STAMPS or part.transform != "identity"
    value = (_as_stamps(values, part.form).cast(pa.string()) if is_stamp else values)[0].as_py()
    if part.transform == "identity" or value is None:
        return f"{part.column}={'NULL' if value is None else value}"
    return f"{part.transform}({part.column})={value[: _SHOWN[part.transform]]}"


def tally(batches: Iterable[pa.RecordBatch], look: Look) -> Tally:
    """The checksums of all rows of the batches, which are forgotten one after the other."""
    found = Tally()
    for batch in batches:
        found.add(batch, look)
    return found


def tally_batches(batches: Iterable[pa.RecordBatch], look: Look) -> Iterator[pa.RecordBatch]:
    """The same where others go on adding. The columns come in the look's order, whatever they are called."""
    yield tally(_name(batches, look), look).write()


def pick_batches(batches: Iterable[pa.RecordBatch], look: Look, bins: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The rows of some bins, each with its number."""
    names = [item.name for item in look.fields]
    for batch in _name(batches, look):
        numbers = hash_rows(batch, look.fields)
        places = np.flatnonzero(np.isin(find_bins(numbers), bins))
        texts = [_format_row(batch.slice(int(place), 1).select(names)) for place in places]
        yield pa.RecordBatch.from_arrays([pa.array(numbers[places].view(np.int64)), pa.array(texts, pa.string())], schema=PICKED_SCHEMA)


def _name(batches: Iterable[pa.RecordBatch], look: Look) -> Iterator[pa.RecordBatch]:
    return (batch.rename_columns([item.name for item in look.fields]) for batch in batches)


def _format_row(row: pa.RecordBatch) -> str:
    try:
        return json.dumps(row.to_pylist()[0], default=str, ensure_ascii=False)
    except (ValueError, OverflowError) as error:
        return f"a row that has no text: {error}"


@dataclass(frozen=True, slots=True)
class Part:
    """A partition or a bin of which both sides do not say the same."""

    name: str
    iceberg_rows: int
    ducklake_rows: int


def compare(iceberg: Tally, ducklake: Tally) -> tuple[Part, ...]:
    """Where both differ, by partition when there are any, else by bin; nothing when all rows are the same."""
    if not find_different_bins(iceberg, ducklake):
        return ()
    labels = iceberg.labels | ducklake.labels
    keys = [key for key in labels if iceberg.groups.get(key) != ducklake.groups.get(key)]
    if keys:
        none = Total()
        return tuple(Part(labels[key], iceberg.groups.get(key, none).rows, ducklake.groups.get(key, none).rows) for key in keys)
    return tuple(
        Part(f"bucket {key} of {BINS}", int(iceberg.counts[key]), int(ducklake.counts[key]))
        for key in find_different_bins(iceberg, ducklake)
    )


def find_different_bins(iceberg: Tally, ducklake: Tally) -> list[int]:
    """The bins that hold rows which only one side has, or has more often."""
    return np.flatnonzero((iceberg.counts != ducklake.counts) | (iceberg.sums != ducklake.sums)).tolist()


def find_examples(iceberg: Iterable[Mapping[str, Any]], ducklake: Iterable[Mapping[str, Any]], limit: int) -> tuple[list[str], list[str]]:
    """Rows that only Iceberg shows, and such that only DuckLake does, of those that were picked."""
    sides = [list(iceberg), list(ducklake)]
    texts = {row["number"]: row["text"] for side in sides for row in side}
    first, second = (Counter(row["number"] for row in side) for side in sides)
    only = [[texts[number] for number in (mine - other).elements()][:limit] for mine, other in ((first, second), (second, first))]
    return only[0], only[1]
