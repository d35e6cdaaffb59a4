"""The Java libraries that Spark lacks, fetched once by Spark's own Ivy and checked by their SHA-256."""

import hashlib
import importlib.util
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[str], None]
_SECONDS_BETWEEN_REPORTS = 1.0


@dataclass(frozen=True, slots=True)
class Jar:
    """One published library, by its Maven name and the SHA-256 of its bytes."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


class JarUnavailable(RuntimeError):
    """A library could not be fetched, or is not the one we know; the message names it."""


def fetch_jars(jars: Iterable[Jar], folder: Path, java: list[str], progress: Progress) -> list[Path]:
    """The jars as files in `folder`; what is missing is fetched first, with a word to `progress`.

    `java` is the command that runs Java, with the options that fetching needs.
    Raises: JarUnavailable — not to be had, or its bytes are not those that were published
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [_fetch(jar, folder, java, progress) for jar in jars]


def _fetch(jar: Jar, folder: Path, java: list[str], progress: Progress) -> Path:
    path = folder / jar.file_name
    if path.is_file() and _read_sha256(path) == jar.sha256:
        return path
    progress(f"fetching {jar.file_name} (once)")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        fetched = _run_ivy(jar, Path(scratch), java, progress)
        found = _read_sha256(fetched)
        if found != jar.sha256:
            raise JarUnavailable(f"{jar.file_name}: expected SHA-256 {jar.sha256}, got {found}")
        fetched.replace(path)
    return path


def _run_ivy(jar: Jar, scratch: Path, java: list[str], progress: Progress) -> Path:
    command = [*java, "-jar", str(_get_ivy()), "-error", "-notransitive", "-types", "jar"]
    command += ["-cache", str(scratch / "cache"), "-dependency", jar.group, jar.artifact, jar.version]
    command += ["-retrieve", f"{scratch}/[artifact]-[revision].[ext]"]
    log = scratch / "ivy.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as ivy:
        while not _has_ended(ivy):
            fetched_bytes = sum(part.stat().st_size for part in scratch.rglob("*.jar*") if part.is_file())
            progress(f"fetching {jar.file_name}: {fetched_bytes // 1_000_000} MB")
    path = scratch / jar.file_name
    if ivy.returncode != 0 or not path.is_file():
        raise JarUnavailable(f"cannot fetch {jar.file_name}: {log.read_text(errors='replace')[-2000:]}")
    return path


def _has_ended(ivy: "subprocess.Popen[bytes]") -> bool:
    try:
        ivy.wait(timeout=_SECONDS_BETWEEN_REPORTS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _get_ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarUnavailable("pyspark is not installed: .venv/bin/pip install -e '.[spark]'")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise JarUnavailable("this pyspark has no Ivy among its jars")
    return found[-1]


def _read_sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
