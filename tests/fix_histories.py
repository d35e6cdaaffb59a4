"""Options and fixtures of the differential test: how many histories, from which seed."""

from dataclasses import dataclass

import pytest

_HISTORIES = 40
_SEED = 20261121
_BLOCK = 10


@dataclass(frozen=True, slots=True)
class Block:
    """Some histories that follow from one seed."""

    seed: int
    count: int
    wide: bool = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--histories N --seed S --wide`: a longer run, the same run again, or one with maintenance in it."""
    group = parser.getgroup("differential")
    group.addoption("--histories", type=int, default=_HISTORIES, help="how many generated histories to prove")
    group.addoption("--seed", type=int, default=_SEED, help="where the histories come from")
    group.addoption("--wide", action="store_true", help="let histories flush, merge, rewrite, expire and checkpoint as well")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a `block` runs once for each block, so that processes share the work."""
    if "block" in metafunc.fixturenames:
        count, first = read_option(metafunc.config, "histories"), read_option(metafunc.config, "seed")
        wide = bool(metafunc.config.getoption("wide"))
        blocks = [Block(first + start, min(_BLOCK, count - start), wide) for start in range(0, count, _BLOCK)]
        metafunc.parametrize("block", blocks, ids=[f"seed{block.seed}x{block.count}" for block in blocks])


@pytest.fixture
def history_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run."""
    return read_option(request.config, "seed")


def read_option(config: pytest.Config, name: str) -> int:
    """One of the two numbers."""
    number = config.getoption(name)
    assert isinstance(number, int)
    return number
