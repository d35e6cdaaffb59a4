"""Every `fix_*.py` beside this file is a plugin with fixtures for all rooms."""

import gc
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.examples import EXAMPLES_PER_CHANGE

pytest_plugins = sorted(f"tests.{path.stem}" for path in Path(__file__).parent.glob("fix_*.py"))

# What is looked for is the same in every run, so that a change alone turns a test red; `--long` looks elsewhere each time.
# A machine that does other work too may take its time over an example.
settings.register_profile("same", derandomize=True, deadline=None, max_examples=EXAMPLES_PER_CHANGE)
settings.register_profile("long", deadline=None)
settings.load_profile("same")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Each process that runs tests of Spark starts one: such tests are marked, and go in a group.

    Raises: pytest.UsageError: one is not or does not
    """
    marks = ("spark", "xdist_group")
    needy = [item for item in items if "spark" in getattr(item, "fixturenames", ())]
    stray = [item.nodeid for item in needy if not all(item.get_closest_marker(mark) for mark in marks)]
    if stray:
        raise pytest.UsageError(f"tests of Spark need the marks {' and '.join(marks)}: {', '.join(stray)}")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that need servers, and give tests that share a fixture of their module to one process, which makes it once."""
    if "stack" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.servers)
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    is_shared = any(found[-1].scope == "module" for found in definitions.values() if found)
    if is_shared and item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(Path(item.location[0]).as_posix()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Find the tests without the garbage collector, which takes a third of the time: nearly all that is made stays to the end.

    Nor does it go through the tests afterwards, whenever it runs.
    """
    gc.disable()
    try:
        found = yield
        gc.freeze()
        return found
    finally:
        gc.enable()
