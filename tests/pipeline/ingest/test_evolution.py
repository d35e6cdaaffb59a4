"""What a table needs before it takes rows of other columns: decided by a pure function."""

import itertools
from collections.abc import Callable

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from duckicelake.pipeline.ingest.options import Evolve
from duckicelake.pipeline.ingest.schema_evolution import (
    ColumnEvolution,
    EvolutionRefused,
    adopt,
    apply_changes,
    fits,
    is_promotion,
    plan_evolution,
)
from tests.support.spark import Spark

TYPES: list[DataType] = [
    *(ShortType(), IntegerType(), LongType(), FloatType(), DoubleType(), StringType(), DateType(), TimestampType()),
    *(DecimalType(9, 2), DecimalType(12, 2), DecimalType(12, 4), DecimalType(20, 0)),
]


def columns(**types: DataType) -> StructType:
    """Columns that may be NULL."""
    return StructType([StructField(name, form) for name, form in types.items()])


def plan(current: DataType, incoming: DataType, policy: Evolve = Evolve.widen) -> list[str]:
    """What becomes of a column `c`."""
    return [str(change) for change in plan_evolution(columns(c=current), columns(c=incoming), policy)]


@pytest.mark.parametrize("policy", list(Evolve))
def test_the_same_columns_need_nothing(policy: Evolve) -> None:
    """Neither does another order, another case, a missing column, a smaller type or one without values."""
    current = columns(id=LongType(), name=StringType(), price=DecimalType(12, 2))
    assert plan_evolution(current, current, policy) == ()
    assert plan_evolution(current, columns(NAME=StringType(), id=IntegerType(), price=NullType()), policy) == ()


def test_a_new_column_wants_add() -> None:
    """Refused by its name, else added under the name it has in the files; inside a struct too."""
    current, inner = columns(a=IntegerType(), s=columns(x=LongType())), columns(x=LongType(), y=StringType())
    with pytest.raises(EvolutionRefused, match="column b is not in the table"):
        plan_evolution(current, columns(a=IntegerType(), b=StringType()), Evolve.fail)
    changes = plan_evolution(current, columns(a=IntegerType(), b=DecimalType(9, 2), s=inner), Evolve.add)
    assert [change.format_alter("t") for change in changes] == [
        "ALTER TABLE t ADD COLUMN `b` decimal(9,2)",
        "ALTER TABLE t ADD COLUMN `s`.`y` string",
    ]


def test_a_wider_type_wants_widen() -> None:
    """Iceberg's promotions and no others."""
    for policy in (Evolve.fail, Evolve.add):
        with pytest.raises(EvolutionRefused, match="column c: the files have bigint, the table has int; --evolve widen"):
            plan(IntegerType(), LongType(), policy)
    assert plan(IntegerType(), LongType()) == ["widen c bigint"]
    assert plan(FloatType(), DoubleType()) == ["widen c double"]
    assert plan(DecimalType(9, 2), DecimalType(12, 2)) == ["widen c decimal(12,2)"]
    nested = plan_evolution(columns(s=columns(x=IntegerType())), columns(s=columns(x=LongType())), Evolve.widen)
    assert [change.format_alter("t") for change in nested] == ["ALTER TABLE t ALTER COLUMN `s`.`x` TYPE bigint"]


@pytest.mark.parametrize(("current", "incoming"), list(itertools.product(TYPES, TYPES)), ids=lambda form: form.simpleString())
def test_a_type_fits_is_widened_or_is_refused(current: DataType, incoming: DataType) -> None:
    """Exactly one of them, for every pair; a promotion goes where the old type fits."""
    kinds = [fits(incoming, current), is_promotion(current, incoming)]
    assert sum(kinds) <= 1
    if kinds[1]:
        assert fits(current, incoming)
    if any(kinds):
        assert plan(current, incoming) == ([f"widen c {incoming.simpleString()}"] if kinds[1] else [])
    else:
        with pytest.raises(EvolutionRefused, match="column c"):
            plan(current, incoming)


@pytest.mark.parametrize("wrap", [ArrayType, lambda form: MapType(StringType(), form), lambda form: columns(x=ArrayType(columns(y=form)))])
def test_what_is_inside_has_to_fit_too(wrap: Callable[[DataType], DataType]) -> None:
    """A list of doubles is none of whole numbers; a field that the other one lacks has no place."""
    assert fits(wrap(IntegerType()), wrap(LongType()))
    for form, narrow in ((DoubleType(), IntegerType()), (TimestampType(), DateType()), (DecimalType(9, 4), DecimalType(9, 1))):
        assert not fits(wrap(form), wrap(narrow))
    assert fits(columns(x=LongType()), columns(X=LongType(), y=LongType()))
    assert not fits(columns(x=LongType(), y=LongType()), columns(x=LongType()))
    assert not fits(MapType(LongType(), LongType()), MapType(IntegerType(), LongType()))


def test_lists_and_maps_are_not_changed_inside() -> None:
    """Their elements must fit as they are."""
    assert plan(ArrayType(LongType()), ArrayType(IntegerType())) == []
    with pytest.raises(EvolutionRefused, match=r"column c\.element"):
        plan(ArrayType(IntegerType()), ArrayType(LongType()))
    with pytest.raises(EvolutionRefused, match=r"column c\.value"):
        plan(MapType(StringType(), IntegerType()), MapType(StringType(), LongType()))


def test_text_takes_the_types_of_the_table() -> None:
    """Fields that it does not know stay, at any depth, so that they are refused or added; those that the files lack are NULL."""
    target = columns(a=LongType(), s=columns(x=LongType(), z=StringType()), l=ArrayType(columns(x=LongType())))
    found = columns(A=IntegerType(), s=columns(x=StringType(), y=DoubleType()), l=ArrayType(columns(x=IntegerType())), n=StringType())
    adopted = adopt(found, target, Evolve.fail)
    expected = columns(A=LongType(), s=columns(x=LongType(), y=DoubleType(), z=StringType()), l=target["l"].dataType, n=StringType())
    assert adopted == expected
    assert [str(change) for change in plan_evolution(target, adopted, Evolve.add)] == ["add s.y double", "add n string"]
    with pytest.raises(EvolutionRefused, match=r"column s\.y is not in the table"):
        plan_evolution(target, adopted, Evolve.fail)
    deep = adopt(columns(l=ArrayType(columns(y=LongType()))), target, Evolve.add)
    with pytest.raises(EvolutionRefused, match="what is inside lists"):
        plan_evolution(target, deep, Evolve.add)
    assert adopt(columns(c=LongType()), columns(c=IntegerType()), Evolve.widen) == columns(c=LongType())
    assert adopt(found, None, Evolve.fail) == found


def test_a_column_that_must_have_values_must_be_in_the_files() -> None:
    """Else every row would be refused."""
    current = StructType([StructField("id", LongType(), nullable=False), StructField("n", StringType())])
    with pytest.raises(EvolutionRefused, match="column id must have a value"):
        plan_evolution(current, columns(n=StringType()), Evolve.add)


def test_names_that_differ_by_case_alone_are_refused() -> None:
    """The table could not tell them apart."""
    with pytest.raises(EvolutionRefused, match="two columns"):
        plan_evolution(columns(a=IntegerType()), columns(b=IntegerType(), B=IntegerType()), Evolve.add)


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_what_was_changed_needs_nothing_more(spark: Spark) -> None:
    """The columns that are foreseen are those that take the rows; what the table knows more of a column stays."""
    assert spark.session
    told = {"CURRENT_DEFAULT": "7"}
    current = StructType(
        [StructField("a", IntegerType(), False, told), StructField("s", columns(x=IntegerType(), l=ArrayType(DateType())))]
    )
    incoming = columns(A=LongType(), S=columns(X=LongType(), y=ShortType(), z=columns(q=StringType())), n=DecimalType(9, 2))
    changes = plan_evolution(current, incoming, Evolve.widen)
    inner = columns(x=LongType(), l=ArrayType(DateType()), y=IntegerType(), z=columns(q=StringType()))
    expected = [StructField("a", LongType(), False, told), StructField("s", inner), StructField("n", DecimalType(9, 2))]
    assert apply_changes(current, changes) == StructType(expected)
    assert plan_evolution(apply_changes(current, changes), incoming, Evolve.fail) == ()
    for form, wider in itertools.product(TYPES, TYPES):
        if is_promotion(form, wider):
            assert apply_changes(columns(c=form), plan_evolution(columns(c=form), columns(c=wider), Evolve.widen)) == columns(c=wider)
    assert apply_changes(current, [ColumnEvolution(("valid_from",), "bigint", is_new=False)]) == current
