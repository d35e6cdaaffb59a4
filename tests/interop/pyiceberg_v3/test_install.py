"""The shim goes in, does not go in twice or where it is not known, and comes out."""

import pyiceberg
import pytest
from pyiceberg import manifest
from pyiceberg.table import Transaction

from duckicelake.errors import Unsupported
from duckicelake.pyiceberg_v3 import PATCHES, install
from tests.interop.pyiceberg_v3.rows import SCHEMA, make_rows
from tests.support.readers import Served

OF_PYICEBERG = [patch for patch in PATCHES if patch[1] != "_parse_type"]
"""The patches of what PyIceberg has itself: the other one is a name that the replaced code of a method calls."""


def names() -> list[object]:
    """What PyIceberg has now under the names that are patched."""
    return [vars(owner)[name] if name in vars(owner) else getattr(owner, name) for owner, name, _, _ in OF_PYICEBERG]


def test_it_goes_in_and_comes_out() -> None:
    """Twice is as once, and afterwards PyIceberg is as it was."""
    before = names()
    assert before == [theirs for _, _, theirs, _ in OF_PYICEBERG]
    install()
    uninstall = install()
    assert names() == [ours for _, _, _, ours in OF_PYICEBERG]
    uninstall()
    assert names() == before
    assert manifest.DEFAULT_READ_VERSION == 2


def test_another_pyiceberg_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its version, before anything is changed."""
    before = Transaction.delete
    monkeypatch.setattr(pyiceberg, "__version__", "0.12.1")
    with pytest.raises(Unsupported, match=r"PyIceberg 0\.12\.1 is not known"):
        install()
    assert Transaction.delete is before


def test_without_it_version_3_is_not_written(served: Served) -> None:
    """The day when PyIceberg does it by itself, this one fails."""
    catalog = served.pyiceberg().catalog
    table = catalog.create_table("main.t", SCHEMA, properties={"format-version": "3"})
    with pytest.raises(ValueError, match="Cannot write manifest"):
        table.append(make_rows(1))
