"""The home folder: private, locked, damaged files named."""

import stat
from pathlib import Path

import pytest

from duckicelake.embedded.home import (
    EmbeddedError,
    HomeInUse,
    HomeLock,
    find_holder,
    get_keys,
    open_home,
    read_json,
    read_keys,
    write_json,
)


def mode_of(path: Path) -> int:
    """Return a path's permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_home_is_made_for_its_owner_only(tmp_path: Path) -> None:
    """Folders are 0700, also one that was there with wider rights."""
    wide = tmp_path / "wide"
    wide.mkdir(mode=0o755)
    assert mode_of(open_home(wide).path) == 0o700
    home = open_home(tmp_path / "new" / "home")
    assert mode_of(home.path) == 0o700
    assert mode_of(home.make_folder("log")) == 0o700


def test_a_home_below_a_file_is_refused_by_name(tmp_path: Path) -> None:
    """The message names the folder and the option that moves it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedError, match=r"file/home cannot be used.*--home"):
        open_home(tmp_path / "file" / "home")


def test_keys_are_random_kept_and_private(tmp_path: Path) -> None:
    """The same home gives the same keys, another home gives others, and only the owner can read them."""
    home, other = open_home(tmp_path / "a"), open_home(tmp_path / "b")
    assert read_keys(home) is None
    keys = get_keys(home)
    assert get_keys(home) == keys
    assert read_keys(home) == keys
    assert mode_of(home.keys_path) == 0o600
    assert not {*vars_of(keys)} & {*vars_of(get_keys(other))}


def vars_of(keys: object) -> list[str]:
    """Return the values of a slotted dataclass."""
    return [getattr(keys, name) for name in type(keys).__slots__]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_replaced_file_never_shows_its_half(tmp_path: Path) -> None:
    """Writing replaces the whole file, private from its first byte, and leaves nothing beside it."""
    path = tmp_path / "f.json"
    path.write_text("{}")
    path.chmod(0o644)
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    assert mode_of(path) == 0o600
    assert [found.name for found in tmp_path.iterdir()] == ["f.json"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """A half-written state file ends in a message, not in a traceback of the JSON parser."""
    path = tmp_path / "ports.json"
    path.write_text('{"postgres": ')
    with pytest.raises(EmbeddedError, match=r"ports\.json is damaged"):
        read_json(path)


def test_a_home_serves_one_at_a_time(tmp_path: Path) -> None:
    """The second is told who holds it and what to do; a free home has no holder."""
    home = open_home(tmp_path)
    first, second = HomeLock(home), HomeLock(home)
    assert find_holder(home) is None
    first.acquire("serve")
    with pytest.raises(HomeInUse, match=r"in use by `duckicelake serve` \(pid \d+\).*--home") as refused:
        second.acquire("serve")
    assert refused.value.purpose == "serve"
    holder = find_holder(home)
    assert holder is not None
    assert holder[1] == "serve"
    first.release()
    first.release()
    second.acquire("check")
    second.release()


def test_parts_of_a_home_are_locked_apart(tmp_path: Path) -> None:
    """The lock of the server is not the lock of the stack."""
    home = open_home(tmp_path)
    stack, server = HomeLock(home), HomeLock(home, "server")
    stack.acquire("backends")
    server.acquire("serve")
    assert find_holder(home) != find_holder(home, "server")
    stack.release()
    server.release()
