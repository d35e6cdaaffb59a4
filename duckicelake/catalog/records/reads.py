"""The audit of reads: who loaded what, counted in memory and written later, so that no request waits for Postgres.

`rest` counts reads on the event loop. The thread of the audit log takes and writes them. The REST route and the command line list
them in a read transaction.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import unquote

from duckicelake.access.grants import format_object
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.lake.audit_log import CountedRead, read_reads
from duckicelake.lake.connect import reading

MOST_READS = 1000
"""The longest page of a list."""
MAX_KINDS = 20_000
"""Different reads that one lake keeps in memory in each worker, about 10 MB."""
LARGEST_ID = 2**63 - 1


class ReadAnswer(NamedTuple):
    """The snapshot, keys and names that an answer showed. A tuple, because a hash of it is computed with every cached load.

    `snapshot_id`, `keys`: as in `CountedRead`. `lake_name`, `object_name`: for requests whose path names no table.
    """

    snapshot_id: int | None = None
    keys: str | None = None
    lake_name: str | None = None
    object_name: str | None = None


ReadKey = tuple[str, bytes, str | None, str | None, ReadAnswer | None]
"""What equal reads have in common: method, raw path, principal, the client's address, and what the answer showed.

The raw path stands for the operation and its object, which are only computed once.
"""


class ReadContext(NamedTuple):
    """The values that are computed once for equal reads: the operation, its object, and the id of the first request."""

    request_id: str
    operation: str
    object_name: str | None


@dataclass(slots=True)
class _Count:
    context: ReadContext
    first_s: float
    last_s: float
    count: int


@dataclass(slots=True)
class ReadCounter:
    """Count equal reads until they are taken. `share`: the part of all reads that is counted, chosen at random; 0: none is.

    The event loop counts, another thread takes.
    """

    share: float
    max_kinds: int = MAX_KINDS
    dropped_count: int = 0
    _counts: dict[ReadKey, _Count] = field(default_factory=dict[ReadKey, _Count])
    _lock: Lock = field(default_factory=Lock)

    def is_chosen(self) -> bool:
        """True if the next read is to be counted. A sample that can be guessed does no harm, so `random` is enough."""
        return self.share >= 1 or random.random() < self.share

    def count_again(self, key: ReadKey) -> bool:
        """Count a read that equals an earlier one; False if there is none."""
        with self._lock:
            known = self._counts.get(key)
            if known is None:
                return False
            known.count += 1
            known.last_s = time.time()
            return True

    def count_first(self, key: ReadKey, context: ReadContext) -> None:
        """Count a read that equals none; if too many different ones wait, only count that it is missing."""
        now_s = time.time()
        with self._lock:
            if len(self._counts) < self.max_kinds:
                self._counts[key] = _Count(context, now_s, now_s, 1)
            else:
                self.dropped_count += 1

    def take(self) -> list[CountedRead]:
        """Return the reads that were counted since the last call, and count from zero again."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return [build_read(key, counted) for key, counted in taken.items()]

    def give_up(self, reads: Sequence[CountedRead]) -> None:
        """Count reads as missing that cannot be written."""
        self.dropped_count += sum(read.read_count for read in reads)


def build_read(key: ReadKey, counted: _Count) -> CountedRead:
    """Return equal reads as they are written."""
    context, (_, _, principal, address, answer) = counted.context, key
    answer = answer or ReadAnswer()
    return CountedRead(
        datetime.fromtimestamp(counted.first_s, UTC),
        datetime.fromtimestamp(counted.last_s, UTC),
        counted.count,
        context.request_id,
        principal,
        address,
        context.operation,
        answer.object_name or context.object_name,
        answer.snapshot_id,
        answer.keys,
    )


@dataclass(frozen=True, slots=True)
class ReadPage:
    """Reads, those that were written last first. `before`: the number that the next page begins below; None at the end."""

    reads: Sequence[CountedRead]
    before: int | None


@dataclass(frozen=True, slots=True)
class WantedReads:
    """The reads that a list has: those of one table, view or function (`a.b.t`, `route:r/a.b.t`), and those of one principal."""

    object_name: str | None = None
    principal: str | None = None


ALL_READS = WantedReads()


def list_reads(warehouse: Warehouse, most: int, before: int | None = None, wanted: WantedReads = ALL_READS) -> ReadPage:
    """Return reads of a lake that are written, those that were written last first."""
    name = None if wanted.object_name is None else normalize_object(wanted.object_name)
    if wanted.principal is not None and "\0" in wanted.principal:
        # Postgres takes no such text, and no principal has such a name.
        return ReadPage((), None)
    with reading(warehouse.lake) as conn:
        rows = read_reads(conn, LARGEST_ID if before is None else before, most + 1, name, wanted.principal)
    shown = rows[:most]
    return ReadPage([read for _, read in shown], shown[-1][0] if len(rows) > most else None)


def normalize_object(text: str) -> str:
    """Return an object in the one spelling that the audit log has."""
    route, slash, name = text.rpartition("/") if text.startswith("route:") else ("", "", text)
    return f"{route}{slash}{format_object(tuple(unquote(level) for level in name.split('.')))}"


def encode_read(read: CountedRead) -> Mapping[str, Any]:
    """Return a read as the REST API and the command line show it."""
    return {
        "first-at": read.first_at.astimezone(UTC).isoformat(),
        "last-at": read.last_at.astimezone(UTC).isoformat(),
        "count": read.read_count,
        "request-id": read.request_id,
        "principal": read.principal,
        "address": read.address,
        "operation": read.operation,
        "branch": read.branch,
        "object": read.object_name,
        "snapshot-id": read.snapshot_id,
        "keys": read.keys,
    }
