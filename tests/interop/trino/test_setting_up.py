"""What a machine without Java or Maven is told; Trino itself is not started here."""

from pathlib import Path

import pytest

from tests.support.trino.jars import fetch_trino
from tests.support.trino.java import TrinoMissing, find_java


def make_java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    """A folder that looks like a JDK of that version."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.mark.parametrize("version", ["25", "25.0.3", "26.0.1"])
def test_an_installed_java_is_taken_when_trino_runs_on_it(tmp_path: Path, version: str) -> None:
    """The environment's first, then what is installed; too old ones and trimmed ones are passed over."""
    make_java(tmp_path / "all" / "a-old", "21.0.8")
    make_java(tmp_path / "all" / "b-trimmed", "25.0.2", "java.base")
    good = make_java(tmp_path / "all" / "c-good", version)
    assert find_java({"JAVA_HOME": str(tmp_path / "all" / "a-old")}, tmp_path, tmp_path / "all") == good / "bin" / "java"
    named = make_java(tmp_path / "named", version)
    assert find_java({"TRINO_JAVA_HOME": str(named)}, tmp_path, tmp_path / "all") == named / "bin" / "java"


def test_without_a_java_and_without_a_network_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip cannot fetch the runtime: the message says which variable names another."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(TrinoMissing, match="TRINO_JAVA_HOME"):
        find_java({}, tmp_path / "cache", tmp_path / "nothing")
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_maven_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is fetched."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TrinoMissing, match="apt-get install maven"):
        fetch_trino(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
