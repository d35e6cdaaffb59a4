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


_ICEBERG_VERSION = "1.11.0"
_RUNTIME_SHA256 = "d6ea6c5d099288daeb7d5a92061bd3d7d8f296492632b42378e5f2f0e3066242"
_AWS_SHA256 = "38f01da7e96850cdd05e6616d758b77b43314b712a8808e3f9a824d56976162f"


def iceberg_jars() -> tuple[Jar, Jar]:
    """Iceberg for Spark 4.1, and what it needs to reach S3."""
    group = "org.apache.iceberg"
    return (
        Jar(group, "iceberg-spark-runtime-4.1_2.13", _ICEBERG_VERSION, _RUNTIME_SHA256),
        Jar(group, "iceberg-aws-bundle", _ICEBERG_VERSION, _AWS_SHA256),
    )


def source_jars(source: str) -> tuple[Jar, ...]:
    """What Spark 4.1 needs to read a source of `ingest`: Avro always, S3 and databases where its URI names them.

    Its S3 connector has no client of its own here: it takes the one that Iceberg brings.
    """
    avro = Jar("org.apache.spark", "spark-avro_2.13", "4.1.1", "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d")
    return (avro, *next((jars for start, jars in _connectors().items() if source.lower().startswith(start)), ()))


def _connectors() -> dict[str, tuple[Jar, ...]]:
    s3 = (
        Jar("org.apache.hadoop", "hadoop-aws", "3.4.2", "d2d24e6b715b5656b9d238bf13b6682a07e2004dd36aad74a73aeb854319f4d9"),
        Jar(
            *("software.amazon.awssdk", "s3-transfer-manager", "2.44.4"),
            "dbcad736b19f6eb8471f9edf027d9fffe994228f25f415894efd01fd80cb6c02",
        ),
    )
    postgres = Jar("org.postgresql", "postgresql", "42.7.8", "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7")
    sqlite = Jar("org.xerial", "sqlite-jdbc", "3.50.3.0", "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08")
    return {"s3://": s3, "s3a://": s3, "jdbc:postgresql:": (postgres,), "jdbc:sqlite:": (sqlite,)}


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
    command = [*java, "-jar", str(_find_ivy()), "-error", "-notransitive", "-types", "jar"]
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


def _find_ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarUnavailable("pyspark is not installed: pip install 'duckicelake[spark]'")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise JarUnavailable("this pyspark has no Ivy among its jars")
    return found[-1]


def _read_sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
