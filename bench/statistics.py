"""Figures from measurements: percentiles, and how a cost grows with the number of items."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LINEAR_WITHIN = 1.5
"""By how much the cost of one more item may grow per tenfold number of items and still be called linear."""


@dataclass(frozen=True, slots=True)
class Growth:
    """One step of a curve. `per_item` is the whole cost over all items; `marginal` what each of the new items cost."""

    items: int
    cost: float
    per_item: float
    marginal: float | None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` (0 to 1) of the values do not exceed, interpolated between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def measure_growth(points: Sequence[tuple[int, float]]) -> list[Growth]:
    """Return a curve's steps from (items, cost), fewest items first."""
    steps: list[Growth] = []
    for items, cost in points:
        marginal = (cost - steps[-1].cost) / (items - steps[-1].items) if steps else None
        steps.append(Growth(items, cost, cost / items, marginal))
    return steps


def is_linear(points: Sequence[tuple[int, float]]) -> bool | None:
    """Tell whether an item costs about the same however many there are; None when two steps cannot say.

    Compares what the last step's items cost with what those of the step before cost, so that a fixed cost counts for nothing.
    """
    steps = measure_growth(points)
    if len(steps) < 3:
        return None
    (before, last) = steps[-2:]
    assert before.marginal is not None
    assert last.marginal is not None
    return last.marginal <= before.marginal * LINEAR_WITHIN
