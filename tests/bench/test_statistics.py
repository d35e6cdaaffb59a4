"""Percentiles and growth curves."""

import pytest

from bench.report import format_cell
from bench.statistics import is_linear, measure_growth, percentile


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        pytest.param([3.0], 0.99, 3.0, id="one value"),
        pytest.param([4.0, 1.0, 3.0, 2.0], 0.5, 2.5, id="between two"),
        pytest.param([5.0, 1.0, 3.0], 0.5, 3.0, id="the middle"),
        pytest.param([1.0, 2.0, 3.0], 1.0, 3.0, id="the largest"),
        pytest.param([1.0, 2.0, 3.0], 0.0, 1.0, id="the smallest"),
    ],
)
def test_a_percentile_lies_between_its_neighbours(values: list[float], share: float, expected: float) -> None:
    """Values need no order."""
    assert percentile(values, share) == pytest.approx(expected)


def test_growth_tells_the_cost_of_new_items() -> None:
    """A fixed cost is in the cost per item, not in that of new items."""
    first, second = measure_growth([(10, 120.0), (110, 320.0)])
    assert (first.per_item, first.marginal) == (12.0, None)
    assert (second.per_item, second.marginal) == (pytest.approx(320 / 110), 2.0)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        pytest.param([(n, 50 + 2.0 * n) for n in (1, 10, 100, 1000)], True, id="linear above a fixed cost"),
        pytest.param([(n, 0.001 * n * n) for n in (10, 100, 1000)], False, id="quadratic"),
        pytest.param([(10, 1.0), (100, 10.0)], None, id="too few points"),
    ],
)
def test_linear_is_told_from_quadratic(points: list[tuple[int, float]], expected: bool | None) -> None:
    """One more item costs the same however many there are."""
    assert is_linear(points) is expected


@pytest.mark.parametrize(
    ("cell", "expected"),
    [(0.07512, "0.075"), (12.34, "12.3"), (1234.5, "1,234"), (100_000, "100,000"), (None, "–"), (True, "yes"), ("a", "a")],
)
def test_a_figure_shows_the_digits_it_is_worth(cell: float | str | None, expected: str) -> None:
    """Three digits for small figures, none for large ones."""
    assert format_cell(cell) == expected
