"""Which statistics prove that a required column holds no NULL."""

from duckicelake.lake.null_proofs import NO_SNAPSHOT, compute_required_since, list_proofs, list_required
from duckicelake.lake.rows import ColumnRow, JsonNote

NOTE = (
    '[{"id":1,"name":"a","required":true,"type":"int"},{"id":2,"name":"s","required":false,"type":{"type":"struct","fields":'
    '[{"id":3,"name":"x","required":true,"type":"int"}]}},{"id":4,"name":"l","required":false,"type":{"type":"list","element-id":5,'
    '"element-required":true,"element":"float"}}]'
)


def column(column_id: int, column_type: str, parent: int | None = None, *, nulls_allowed: bool = False) -> ColumnRow:
    """A column as DuckLake has it from the beginning."""
    return ColumnRow(column_id, 0, None, column_id, f"c{column_id}", column_type, None, None, None, nulls_allowed, parent)


COLUMNS = [
    column(1, "int32"),
    column(2, "struct"),
    column(3, "int32", 2),
    column(4, "list"),
    column(5, "float32", 4),
    column(6, "map"),
    column(7, "varchar", 6),
    column(8, "float64", 6),
    column(9, "int32", nulls_allowed=True),
]


def test_parts_are_required_by_noted_schemas_alone() -> None:
    """DuckDB says NOT NULL of parts that it adds or renames, whatever they hold."""
    assert list_required(COLUMNS, []) == {1, 2, 4, 6}
    assert list_required(COLUMNS, [JsonNote(0, NOTE), JsonNote(1, f'{{"identifier-field-ids":[1],"fields":{NOTE}}}')]) == {1, 2, 3, 4, 5, 6}


def test_a_column_is_required_since_it_last_became_so() -> None:
    """A rename makes another row, and does not break it; what was optional in between does. Parts of columns have no such word."""
    rows = [
        ColumnRow(1, begin, None, 1, "c", "int32", None, None, None, nulls_allowed, None)
        for begin, nulls_allowed in ((0, False), (5, True), (7, False), (9, False))
    ]
    assert compute_required_since(rows, 1) == 7
    assert compute_required_since(rows[:2], 1) == NO_SNAPSHOT
    assert compute_required_since(COLUMNS, 3) == NO_SNAPSHOT


def test_leaves_prove_what_they_are_part_of() -> None:
    """Writers that leave NULL and empty lists out of the counts of floating-point leaves prove nothing of lists and maps."""
    proofs = list_proofs(COLUMNS, {1, 2, 3, 4, 5, 6})
    assert proofs == [(1, 1, False), (3, 3, False), (2, 3, False), (6, 7, True)]
