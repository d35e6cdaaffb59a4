"""Which delete files count for a data file.

Source: Iceberg spec «Scan Planning»; DeleteFileIndex of Iceberg 1.11
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from duckicelake.iceberg.manifest import EQUALITY_DELETES, DataFile

FILE_PATH_ID = 2147483546
PUFFIN = "PUFFIN"
NAN = "NaN"
Partition = tuple[int, tuple[object, ...]]


@dataclass(slots=True, eq=False)
class ScanFile:
    """A live file of a manifest, with what it inherits. `encoded_json` is its JSON, kept with what that was made of.

    `is_global`: its spec tells no files apart, so its equality deletes are of all.
    """

    file: DataFile
    spec_id: int
    snapshot_id: int
    sequence_number: int
    is_added: bool
    is_global: bool
    encoded_json: tuple[object, bytes] | None = field(default=None, repr=False)


@dataclass(slots=True)
class _FilesBySequence:
    """Delete files by sequence number, ascending."""

    files: list[ScanFile] = field(default_factory=list[ScanFile])
    numbers: list[int] = field(default_factory=list[int])

    def sort(self) -> None:
        self.files.sort(key=lambda item: item.sequence_number)
        self.numbers = [item.sequence_number for item in self.files]

    def since(self, sequence_number: int) -> Sequence[ScanFile]:
        return self.files[bisect_left(self.numbers, sequence_number) :]


def _get_partition_key(item: ScanFile) -> Partition:
    # NaN is no other NaN, but a partition of its own
    return item.spec_id, tuple(NAN if value != value else value for value in item.file.partition)


class DeleteIndex:
    """The delete files of a snapshot, by what they delete from."""

    def __init__(self, files: Iterable[ScanFile]) -> None:
        self._vectors: dict[str, ScanFile] = {}
        self._by_path: dict[str, _FilesBySequence] = {}
        self._positions: dict[Partition, _FilesBySequence] = {}
        self._equality: dict[Partition, _FilesBySequence] = {}
        self._everywhere = _FilesBySequence()
        self.file_count = 0
        for item in files:
            self.file_count += 1
            self._put(item)
        for group in (*self._by_path.values(), *self._positions.values(), *self._equality.values(), self._everywhere):
            group.sort()

    def _put(self, item: ScanFile) -> None:
        file, partition = item.file, _get_partition_key(item)
        if file.content == EQUALITY_DELETES:
            group = self._everywhere if item.is_global else self._equality.setdefault(partition, _FilesBySequence())
            group.files.append(item)
            return
        path = find_referenced(file)
        if path is not None and file.file_format == PUFFIN:
            known = self._vectors.get(path)
            if known is None or known.sequence_number <= item.sequence_number:
                self._vectors[path] = item
        elif path is not None:
            self._by_path.setdefault(path, _FilesBySequence()).files.append(item)
        else:
            self._positions.setdefault(partition, _FilesBySequence()).files.append(item)

    def find(self, data: ScanFile) -> list[ScanFile]:
        """Return the delete files that may delete rows of a data file."""
        number, partition = data.sequence_number, _get_partition_key(data)
        found = [*self._everywhere.since(number + 1)]
        if self._equality:
            found += self._equality.get(partition, _FilesBySequence()).since(number + 1)
        vector = self._vectors.get(data.file.file_path)
        if vector is not None and vector.sequence_number >= number:
            # it holds all that older position deletes of the file say
            return [*found, vector]
        if self._positions:
            found += self._positions.get(partition, _FilesBySequence()).since(number)
        if self._by_path:
            found += self._by_path.get(data.file.file_path, _FilesBySequence()).since(number)
        return found


def find_referenced(file: DataFile) -> str | None:
    """Return the one data file that position deletes are for; None when there may be several.

    Source: Iceberg's ContentFileUtil: equal bounds of the paths say as much as the field does
    """
    if file.referenced_data_file is not None:
        return file.referenced_data_file
    lower, upper = (bounds.get(FILE_PATH_ID) if bounds else None for bounds in (file.lower_bounds, file.upper_bounds))
    return lower.decode("utf-8", "replace") if lower is not None and lower == upper else None
