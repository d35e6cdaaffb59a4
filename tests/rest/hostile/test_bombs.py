"""Small files and bodies that say a lot: refused with the reason, in memory that stays bounded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rest.hostile.bombs import BOMBS
from tests.support.shared_stack import ROOT
from tests.support.tiers import long_after

MOST_MIB = 400
"""A bomb is unpacked up to the limit of a manifest, 256 MiB, and no further."""

COMMAND = (sys.executable, "-m", "tests.rest.hostile.bombs")


@pytest.mark.parametrize(
    ("bomb", "said"),
    long_after(
        1,
        [
            pytest.param("vector", "marks 4294967296 rows", id="a deletion vector of billions of rows"),
            pytest.param("keys", "Its values hold 6553600000 bytes", id="one long text in many rows"),
            pytest.param("deletes", "It has 67108864 rows", id="many positions"),
            pytest.param("prefixes", "Its texts hold more than the 2147483648 bytes", id="one long path told by its length"),
            pytest.param("array", "hold more items than are taken", id="an array of millions"),
            pytest.param("text", "it holds more than 268435456 bytes", id="a deflated text"),
            pytest.param("nodes", "'action' is missing", id="a body of as many objects as are read"),
        ],
    ),
)
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, bomb: str, said: str) -> None:
    """Less than some MiB of it would take gigabytes; the process that reads it grows by no more than a manifest may hold."""
    file = tmp_path / bomb
    file.write_bytes(next(make() for name, make, _ in BOMBS if name == bomb))
    assert file.stat().st_size < (32_000_000 if bomb == "nodes" else 10_000_000)
    told = set_off(bomb, file)
    assert said in told["said"]
    assert told["mib"] < MOST_MIB


@pytest.mark.whole
@pytest.mark.parametrize("bomb", long_after(1, ["zeros", "list of zeros"]))
def test_two_gigabytes_of_zeros_are_not_read(tmp_path: Path, bomb: str) -> None:
    """A manifest, or a list of them, is refused by its size: the process that is told to read it hardly grows."""
    file = tmp_path / "zeros.avro"
    file.touch()
    os.truncate(file, 2 * 1024**3)
    told = set_off(bomb, file)
    assert "has 2147483648 bytes" in told["said"]
    assert told["mib"] < 32


def set_off(bomb: str, file: Path) -> Any:
    """Read a bomb in a process of its own, and return what it says of that."""
    done = subprocess.run([*COMMAND, bomb, str(file)], cwd=ROOT, capture_output=True, check=True)
    return json.loads(done.stdout)
