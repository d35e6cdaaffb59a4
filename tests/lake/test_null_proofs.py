"""Which statistics prove that a required column holds no NULL."""

from duckicelake.lake.null_proofs import list_proofs, list_required
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


def test_leaves_prove_what_they_are_part_of() -> None:
    """Writers that leave NULL and empty lists out of the counts of floating-point leaves prove nothing of lists and maps."""
    proofs = list_proofs(COLUMNS, {1, 2, 3, 4, 5, 6})
    assert proofs == [(1, 1, False), (3, 3, False), (2, 3, False), (6, 7, True)]
