"""The judge of kills: a process dies in the step that was meant, and one that ended by itself is not taken for killed."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from threading import Event
from typing import Any

import pytest

from tests.pipeline.dying import Moment, Span, draw, dying, run_module
from tests.support.tiers import whole_after

STEPS = ["look", "make", "hand"]
NEVER = 600.0


def run(moment: Moment, stays_in: str = "") -> list[str]:
    """Run a job that tells its steps and stays in one of them; the steps that it told."""
    return run_module("tests.pipeline.test_dying", {"at": asdict(moment), "stays_in": stays_in})


@pytest.mark.parametrize(
    ("moment", "stays_in"),
    whole_after(
        1,
        [
            pytest.param(Moment(1), "", id="as it begins"),
            pytest.param(Moment(1, 0.1), "make", id="within"),
            pytest.param(Moment(1, NEVER), "", id="as it ends"),
        ],
    ),
)
def test_a_job_dies_in_the_step_that_was_drawn(moment: Moment, stays_in: str) -> None:
    """Also where that is over before the moment comes."""
    assert run(moment, stays_in) == STEPS[:2]


def test_a_job_that_has_ended_was_not_killed() -> None:
    """The moment was too late, and that is an error: not a kill that changed nothing."""
    with pytest.raises(AssertionError, match="it was not killed"):
        run(Moment(2, NEVER))


def test_moments_are_in_steps_that_last() -> None:
    """Each step as it begins, then those that last, equally often, within their spans; tasks are waited for where there are some."""
    spans = (Span(), Span(2.0, has_tasks=True), Span(0.5), Span())
    drawn = [draw(number, 1, spans) for number in range(60)]
    assert drawn[:4] == [Moment(0), Moment(1), Moment(2), Moment(3)]
    assert [moment.step for moment in drawn[4:]] == [1, 2] * 28
    assert len({moment.delay_seconds for moment in drawn[4:]}) == 56
    assert all(0 <= moment.delay_seconds <= spans[moment.step].seconds for moment in drawn)
    assert {(moment.step, moment.stage) for moment in drawn[4:]} == {(1, 0), (2, None)}


def main(given: Mapping[str, Any]) -> None:
    """The job."""
    with dying(Moment(**given["at"])) as tell:
        for step in STEPS:
            tell(step)
            if step == given["stays_in"]:
                Event().wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
