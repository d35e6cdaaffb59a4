"""Names as people and machines give them: plain, mixed case, reserved words, quotes, dots, slashes, other scripts."""

from collections.abc import Iterable, Sequence
from random import Random

from tests.differential.generator.kinds import Column

NAMESPACES = ("sales", "My Schema", "ü", "select", 'say "x"', "a/b", "50%41+", "x.y")
TABLES = (
    *("orders", "events", "Mixed", "t1"),
    *("my table", "a.b", 'say "x"', "ünï", "select", "50%41+", "it's", "日本", "x/y", "-", "# {}", "back\\slash"),
)
_PLAIN = ("name", "amount", "Price", "flag", "at", "day", "note", "tags", "info", "qty", "extra", "Kind", "ref", "weight")
_ODD = ("order", "v.w", "my column", 'say "x"', "ü", "日本", "Größe", "it's", "%41+", "1st", "x/y", "back\\slash", "_x", "#", "l" * 70)
FIELDS = ("a", "b", "c", "D", "ü", "group", "my field", "e")
_ODD_SHARE = 0.25


def draw_names(rng: Random, count: int) -> list[str]:
    """Different names for columns, most of them plain."""
    return _pick(rng, _PLAIN, _ODD, count)


def free_names(columns: Sequence[Column]) -> list[str]:
    """Names that no column has; DuckDB's names are equal without regard to case."""
    return _untaken((*_PLAIN, "id", *_ODD), columns)


def free_fields(fields: Sequence[Column]) -> list[str]:
    """Names that no field of a struct has."""
    return _untaken(FIELDS, fields)


def _untaken(names: Iterable[str], columns: Sequence[Column]) -> list[str]:
    taken = {column.name.lower() for column in columns}
    return [name for name in names if name.lower() not in taken]


def _pick(rng: Random, plain: Sequence[str], odd: Sequence[str], count: int) -> list[str]:
    picked: list[str] = []
    for _ in range(count):
        source = odd if rng.random() < _ODD_SHARE else plain
        picked.append(rng.choice([name for name in source if name not in picked]))
    return picked
