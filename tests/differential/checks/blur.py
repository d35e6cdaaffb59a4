"""What a reader cannot tell apart, made equal on both sides before comparing.

PyIceberg 0.12 reads NULL as empty where a list's element or a map's value is a struct
(`ArrowProjectionVisitor` rebuilds such arrays from their offsets alone).
"""

from collections import Counter
from collections.abc import Sequence

from tests.differential.generator.kinds import Column, Kind, Listing, Mapping, Scalar, Struct
from tests.differential.generator.literals import Plain, Rows, sort_pairs


def blur_rows(columns: Sequence[Column], rows: Rows) -> Rows:
    """The rows with NULL lists and maps of structs made empty."""
    blurred: Rows = Counter()
    for row, count in rows.items():
        blurred[tuple(_blur(column.kind, value) for column, value in zip(columns, row, strict=True))] += count
    return blurred


def _blur(kind: Kind, value: Plain) -> Plain:
    if value is None:
        part = kind.element if isinstance(kind, Listing) else kind.value if isinstance(kind, Mapping) else None
        return () if isinstance(part, Struct) else None
    if isinstance(kind, Scalar) or not isinstance(value, tuple):
        return value
    match kind:
        case Struct(fields):
            return tuple((name, _blur(field.kind, part)) for field, (name, part) in zip(fields, value, strict=True))
        case Listing(element):
            return tuple(_blur(element, part) for part in value)
        case Mapping(_, part_kind):
            return sort_pairs((key, _blur(part_kind, part)) for key, part in value)
