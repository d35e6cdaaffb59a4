"""How many rows the files of a large table have."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from duckicelake.translate.visibility import FileKey, Longs, TrackedFile


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many rows files have: their keys ascend."""

    keys: Longs
    counts: Longs

    def sum(self, keys: Iterable[FileKey]) -> int:
        """Return how many rows these files have together. Raises: IndexError: one of them is not known"""
        wanted = np.fromiter(keys, dtype=np.int64)
        places = np.searchsorted(self.keys, wanted)
        if not np.array_equal(self.keys[places], wanted):
            raise IndexError("a file that is not the table's")
        return int(self.counts[places].sum())


def count_rows(files: Iterable[TrackedFile]) -> RowCounts:
    """Return how many rows the real ones of these files have."""
    real = [file for file in files if file.key >= 0]
    keys = np.fromiter(map(attrgetter("key"), real), dtype=np.int64, count=len(real))
    counts = np.fromiter(map(attrgetter("record_count"), real), dtype=np.int64, count=len(real))
    order = np.argsort(keys, kind="stable")
    return RowCounts(keys[order], counts[order])
