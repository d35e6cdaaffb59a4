"""Options and fixtures of the differential test: how many histories, from which seed."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.differential.sessions import Sessions
from tests.support.shared_stack import SharedStack
from tests.support.tiers import whole_but

_HISTORIES = 3
"""Of each kind, with a second writer and without one, in `scripts/test` and `--all`."""

_SEED = 20261221
_BLOCK = 5
_HISTORIES_PER_SPARK_HISTORY = 10
_SPARK_HISTORIES = 1


@dataclass(frozen=True, slots=True)
class Block:
    """Some histories that follow from one seed."""

    seed: int
    count: int


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--histories N --spark-histories M --seed S`: a longer run, or the same run again."""
    group = parser.getgroup("differential")
    group.addoption("--histories", type=int, default=_HISTORIES, help="how many generated histories to prove")
    many = f"how many of them Spark takes part in; without it, one for each {_HISTORIES_PER_SPARK_HISTORY}"
    group.addoption("--spark-histories", type=int, default=0, help=many)
    group.addoption("--seed", type=int, default=_SEED, help="where the histories come from")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a `block` runs once for each block, so that processes share the work."""
    count, first = read_option(metafunc.config, "histories"), read_option(metafunc.config, "seed")
    if "block" in metafunc.fixturenames:
        blocks = [pytest.param(block, id=name_block(block)) for block in cut(first, count)]
        metafunc.parametrize("block", whole_but(blocks, blocks[0].id))
    if "spark_block" in metafunc.fixturenames:
        count = read_option(metafunc.config, "spark_histories") or max(_SPARK_HISTORIES, count // _HISTORIES_PER_SPARK_HISTORY)
        metafunc.parametrize("spark_block", cut(first + 1_000_000, count), ids=name_block)


def cut(seed: int, count: int) -> list[Block]:
    """So many histories in blocks, each with a seed of its own."""
    return [Block(seed + start, min(_BLOCK, count - start)) for start in range(0, count, _BLOCK)]


def name_block(block: Block) -> str:
    """The block as a test id."""
    return f"seed{block.seed}x{block.count}"


@pytest.fixture(scope="session")
def sessions(stack: SharedStack) -> Iterator[Sessions]:
    """DuckDB sessions that outlive a history."""
    lending = Sessions(stack)
    with lending.opened:
        yield lending


def read_option(config: pytest.Config, name: str) -> int:
    """One of the numbers."""
    number = config.getoption(name)
    assert isinstance(number, int)
    return number
