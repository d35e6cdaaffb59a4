"""Options and policies of `maintain`: defaults, a TOML file, and the tables' own properties; pure but for reading that file.

`commands.jobs.maintain` and the job call it.
"""

import re
import reprlib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.rest import TableIdent, fold, parse_ident
from duckicelake.pipeline.common.spark_sql import SortTerm, parse_order

PROPERTY_PREFIX = "duckicelake.maintain."
LEAST_ORPHAN_AGE = timedelta(hours=1)
LONGEST_AGE = timedelta(days=365_000)
LARGEST_SIZE = 1 << 60
LARGEST_COUNT = (1 << 31) - 1
LAKE_WORDS = ("keep-refs", "file-age", "orphan-age")
"""What concerns the lake as a whole."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:(s)(?:ecs?|econds?)?|(m)(?:ins?|inutes?)?|(h)(?:ours?)?|(d)(?:ays?)?|(w)(?:eeks?)?)\s*")
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]{1,19})\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+")
_TRUTH = {"true": True, "false": False}


class Strategy(StrEnum):
    """The order of rows in rewritten files."""

    binpack = "binpack"
    sort = "sort"
    zorder = "zorder"


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of a table or the lake. An age of None: nothing goes for its age.

    A file below `small_file_ratio` of the target is small, a sorted one below half of that; `min_files` of a partition are put
    together. From `delete_ratio` of its rows deleted on, a file is rewritten. A snapshot goes when it is older than `snapshot_age`
    and not one of the table's `snapshot_count` newest; `keep_refs`: and named by no branch or tag.
    """

    enabled: bool = True
    target_size: int = 512 << 20
    small_file_ratio: float = 0.75
    min_files: int = 5
    delete_ratio: float = 0.3
    flush_rows: int = 1
    strategy: Strategy = Strategy.binpack
    order: tuple[SortTerm, ...] = ()
    snapshot_age: timedelta | None = None
    snapshot_count: int = 1
    keep_refs: bool = True
    file_age: timedelta = timedelta(days=2)
    orphan_age: timedelta | None = None

    def __post_init__(self) -> None:
        """Raise BadRequest for values out of range, and for a strategy without its order."""
        if self.target_size < 1 or self.min_files < 2 or self.flush_rows < 1 or self.snapshot_count < 1:
            raise BadRequest("target-size, flush-rows and snapshot-count begin at 1, min-files at 2")
        if not 0 < self.small_file_ratio < 1 or not 0 < self.delete_ratio <= 1:
            raise BadRequest("small-file-ratio lies between 0 and 1, delete-ratio above 0 and not above 1")
        if self.strategy is Strategy.zorder and not self.order:
            raise BadRequest("strategy zorder needs an order: the columns that matter")
        if self.orphan_age is not None and self.orphan_age < LEAST_ORPHAN_AGE:
            raise BadRequest("orphan-age is at least 1h: files of a writer that has not committed yet look like orphans")

    @property
    def small_bytes(self) -> int:
        """The size below which a file is small."""
        return max(1, int(self.target_size * self.small_file_ratio))

    @property
    def spared_bytes(self) -> int | None:
        """The size from which a file sorted by the table's order is not rewritten; None if the policy has an order of its own."""
        return max(1, self.small_bytes // 2) if not self.order else None


@dataclass(frozen=True, slots=True)
class MaintainPolicies:
    """A file's sections: what holds for the lake and all tables, and what for single tables."""

    default: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    @property
    def lake(self) -> Policy:
        """Return the policy of the lake as a whole."""
        return _apply(Policy(), self.default, "[default]")

    def find(self, table: str, properties: Mapping[str, str]) -> Policy:
        """Return the policy of a table: its section of the file wins over its properties, and these over the section for all tables.

        Raises: BadRequest: a word is unknown or a value cannot be read
        """
        own = {name.removeprefix(PROPERTY_PREFIX): text for name, text in properties.items() if name.startswith(PROPERTY_PREFIX)}
        policy = _apply_own(self.lake, _translate(properties) | own, f"{table}'s properties")
        name = self._find_section(table)
        return policy if name is None else _apply_own(policy, self.tables[name], f'[tables."{name}"]')

    def list_unknown(self, tables: Iterable[str]) -> list[str]:
        """Return the sections that are none of these tables'."""
        return sorted(self.tables.keys() - {self._find_section(table) for table in tables})

    def _find_section(self, table: str) -> str | None:
        """Return the name of a table's section: in its own spelling, else in any case."""
        if table in self.tables:
            return table
        same = [name for name in self.tables if fold(_spell(name)) == fold(table)]
        return next((name for name in same if _spell(name) == table), same[0] if same else None)


def _spell(name: str) -> str:
    """Return a section's name in the form in which table names are printed."""
    with suppress(BadRequest):
        return str(parse_ident(name))
    return name


def parse_policies(text: str) -> MaintainPolicies:
    """Read a TOML file. Raises: BadRequest: it is none, or has an unknown word."""
    try:
        found = tomllib.loads(text)
    except ValueError as error:
        raise BadRequest(f"--policy is no TOML: {error}") from error
    unknown = found.keys() - {"default", "tables"}
    if unknown:
        raise BadRequest(f'--policy has a section {sorted(unknown)[0]}: write [default] or [tables."namespace.table"]')
    policies = MaintainPolicies(
        _check_section(found.get("default", {})), {name: _check_section(one) for name, one in _tables(found).items()}
    )
    for name in policies.tables:
        policies.find(name, {})
    _apply(Policy(), policies.default, "[default]")
    return policies


def _tables(found: Mapping[str, Any]) -> Mapping[str, Any]:
    return _check_section(found.get("tables", {}))


def _check_section(section: Any) -> Mapping[str, Any]:
    if not isinstance(section, dict):
        raise BadRequest("--policy: [default], [tables] and what is below it are sections")
    return section  # pyright: ignore[reportUnknownVariableType]  TOML's keys are texts


def _translate(properties: Mapping[str, str]) -> dict[str, str]:
    """Iceberg's own properties in our words."""
    known = {"write.target-file-size-bytes": "target-size", "history.expire.min-snapshots-to-keep": "snapshot-count"}
    translated = {ours: properties[theirs] for theirs, ours in known.items() if theirs in properties}
    age = properties.get("history.expire.max-snapshot-age-ms")
    if age is not None:
        translated["snapshot-age"] = _translate_age(age.strip())
    return translated


def _translate_age(age_ms: str) -> str:
    """Java's largest numbers are a way to say never."""
    if _NUMBER.fullmatch(age_ms) is None:
        raise BadRequest(f"history.expire.max-snapshot-age-ms {show(age_ms)} is no number of milliseconds")
    digits, longest = age_ms.lstrip("0") or "0", LONGEST_AGE // timedelta(milliseconds=1)
    if len(digits) > len(str(longest)) or int(digits) > longest:
        return "never"
    return f"{int(digits) / 1000:f}s"


def _apply_own(policy: Policy, values: Mapping[str, Any], where: str) -> Policy:
    """Return what one table says of itself."""
    misplaced = next((name for name in LAKE_WORDS if name in values), None)
    if misplaced is not None:
        raise BadRequest(f"{where}: {misplaced} concerns the whole lake and belongs in [default]")
    return _apply(policy, values, where)


def _apply(policy: Policy, values: Mapping[str, Any], where: str) -> Policy:
    unknown = sorted(values.keys() - _READERS.keys())
    if unknown:
        raise BadRequest(f"{where}: {unknown[0]} is none of {', '.join(_READERS)}")
    try:
        return replace(policy, **{name.replace("-", "_"): _READERS[name](_check_plain(name, value)) for name, value in values.items()})
    except BadRequest as error:
        raise BadRequest(f"{where}: {error.message}") from error


def _check_plain(name: str, value: Any) -> Any:
    """Lists and sections say nothing here, nor do numbers that Postgres and Java do not have."""
    if not isinstance(value, str | int | float) or (isinstance(value, int) and value.bit_length() > LARGEST_SIZE.bit_length()):
        raise BadRequest(f"{name} is a text, a number of common size, true or false")
    return value


def show(text: Any) -> str:
    """Return a value in a message, however long it is."""
    return reprlib.repr(str(text))


def parse_age(text: Any) -> timedelta | None:
    """Read `36h`, `7 days`, `0s`; `never` is None. Raises: BadRequest: it is none of these"""
    if str(text).strip().lower() == "never":
        return None
    found = _AGE.fullmatch(str(text))
    if found is None or found.lastindex is None:
        raise BadRequest(f"{show(text)} is no age: write 36h, 7d or never")
    unit, count = timedelta(**{_UNITS[found[found.lastindex]]: 1}), float(found[1])
    if count > LONGEST_AGE / unit:
        raise BadRequest(f"{show(text)} is longer than 1000 years: write never")
    return unit * count


def parse_size(text: Any) -> int:
    """Read `128MB` or a number of bytes; a kilobyte has 1024. Raises: BadRequest: it is neither"""
    found = _SIZE.fullmatch(str(text))
    if found is None:
        raise BadRequest(f"{show(text)} is no size: write 128MB, or bytes")
    size = int(found[1]) * _SIZES[found[2].lower()]
    if size > LARGEST_SIZE:
        raise BadRequest(f"{show(text)} is no size of a file")
    return size


def _read_count(value: Any) -> int:
    text = str(value).strip()
    if _NUMBER.fullmatch(text) is None:
        raise BadRequest(f"{show(value)} is no whole number")
    # Java counts with 32 bits.
    if len(text) > len(str(LARGEST_COUNT)) or int(text) > LARGEST_COUNT:
        raise BadRequest(f"{show(value)} is above {LARGEST_COUNT}")
    return int(text)


def _read_ratio(value: Any) -> float:
    if isinstance(value, bool):
        raise BadRequest(f"{show(value)} is no number")
    try:
        return float(value)
    except ValueError as error:
        raise BadRequest(f"{show(value)} is no number") from error


def _read_certain_age(text: Any) -> timedelta:
    age = parse_age(text)
    if age is None:
        raise BadRequest("file-age is an age")
    return age


def _read_truth(text: Any) -> bool:
    found = _TRUTH.get(str(text).lower())
    if found is None:
        raise BadRequest(f"{show(text)} is neither true nor false")
    return found


def _read_strategy(text: Any) -> Strategy:
    if text not in list(Strategy):
        raise BadRequest(f"strategy {show(text)} is none of {', '.join(Strategy)}")
    return Strategy(text)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "enabled": _read_truth,
    "target-size": parse_size,
    "small-file-ratio": _read_ratio,
    "min-files": _read_count,
    "delete-ratio": _read_ratio,
    "flush-rows": _read_count,
    "strategy": _read_strategy,
    "order": lambda text: parse_order(str(text)),
    "snapshot-age": parse_age,
    "snapshot-count": _read_count,
    "keep-refs": _read_truth,
    "file-age": _read_certain_age,
    "orphan-age": parse_age,
}
"""How each word's value is read, from TOML or from a property's text."""


LONGEST_WATCH = 366 * 86400


@dataclass(frozen=True, slots=True)
class MaintainOptions:
    """One call of the job. No tables: all of them, and what concerns the lake as a whole.

    `watch_seconds` None: once, else again that long after each round.
    """

    tables: tuple[TableIdent, ...] = ()
    policies: MaintainPolicies = field(default_factory=MaintainPolicies)
    watch_seconds: float | None = None

    def __post_init__(self) -> None:
        """Raise BadRequest for a watch period out of range."""
        if self.watch_seconds is not None and not 1 <= self.watch_seconds <= LONGEST_WATCH:
            raise BadRequest("--watch begins at 1 second and ends at a year")


def read_options(tables: Sequence[str] | None, given: Mapping[str, Any]) -> MaintainOptions:
    """Return the command's arguments as options.

    Raises: BadRequest: they contradict each other, a name is no table's, or the policy cannot be read
    """
    idents = tuple(map(parse_ident, tables or ()))
    if given["dry_run"] and given["watch"] is not None:
        raise BadRequest("--dry-run plans once, --watch goes on: choose one")
    return MaintainOptions(idents, _read_policies(given["policy"]), given["watch"])


def _read_policies(path: Path | None) -> MaintainPolicies:
    if path is None:
        return MaintainPolicies()
    try:
        return parse_policies(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"--policy {path} cannot be read: {error}") from error
