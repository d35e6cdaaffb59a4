"""Requests of stock clients with something wrong: the server never fails, and what it refuses changes nothing."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rest.hostile.mutations import draw_spelling, mutate
from tests.rest.hostile.recorded import fill, read_recorded
from tests.rest.hostile.target import Range, open_range
from tests.support.shared_stack import SharedStack
from tests.support.tiers import long_after

COMPARED_FROM = 60
RECORDED = [item for item in read_recorded() if item.body is not None]


@pytest.mark.parametrize("client", long_after(1, sorted({item.client for item in RECORDED})))
def test_recorded_requests_are_still_good(targets: Range, client: str) -> None:
    """Most land as they are: those made of them are wrong in what was changed, not in all the rest."""
    answers = [send(targets, item.method, item.path, item.body) for item in RECORDED[::3] if item.client == client]
    assert sum(status < 300 for status in answers) >= len(answers) - 1


def send(targets: Range, method: str, path: str, body: object) -> int:
    """Send a request as it was recorded; return the status of its answer."""
    target = targets.target()
    answer = target.send(method, path, json.dumps(fill(body, target.words())).encode())
    target.check(answer)
    return answer.status


@pytest.mark.whole
@pytest.mark.parametrize("count", [pytest.param(60, id="some"), pytest.param(3000, id="thousands", marks=pytest.mark.long)])
def test_a_changed_request_is_done_or_refused(stack: SharedStack, targets: Range, count: int) -> None:
    """Done whole and readable by everybody, or refused by 4xx with every row as it was; of thousands both sides read the same rows."""
    if count > COMPARED_FROM:
        with open_range(stack, compares=True) as compared:
            send_changed(compared, count)
    else:
        send_changed(targets, count)


def send_changed(targets: Range, count: int) -> None:
    """Send so many changed requests, each to a settled target."""

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def send_one(data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(RECORDED))
        changed, spell = mutate(data.draw, item.body, RECORDED), draw_spelling(data.draw)
        target = targets.target()
        try:
            target.check(target.send(item.method, item.path, spell(fill(changed, target.words()))))
        except BaseException:
            targets.forget()
            raise

    send_one()
