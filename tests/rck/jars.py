"""The kit's jars, fetched once by Maven, and the program of ours that runs it."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

RESOLVER = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
MAIN_CLASS = "org.apache.iceberg.rest.Kit"
SOURCES = Path(__file__).parent / "kit"
PROGRAMS = (("mvn", "maven"), ("javac", "default-jdk-headless"), ("java", "default-jdk-headless"))


class KitMissing(RuntimeError):
    """The kit cannot be put together; the message says what to install."""


@dataclass(frozen=True, slots=True)
class KitJars:
    """Where the kit of one version of Iceberg lies: its jars, and the classes of Kit.java."""

    folder: Path

    @property
    def classpath(self) -> str:
        """What Java is given; the order does not matter."""
        return f"{self.folder / 'classes'}:{self.folder / 'jars'}/*"


def fetch_kit(cache: Path, iceberg: str) -> KitJars:
    """The kit in `cache`; the first time Maven fetches 150 MB, which takes about half a minute.

    Raises: KitMissing: Maven or a JDK is missing, or a jar is not to be had
    """
    for program, package in PROGRAMS:
        if shutil.which(program) is None:
            raise KitMissing(f"The compatibility kit needs {program}. On Debian: apt-get install {package}")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:12]
    kit = KitJars(cache / f"rck-{iceberg}-{digest}")
    if kit.folder.is_dir():
        return kit
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = KitJars(Path(scratch) / "made")
        _resolve(iceberg, made.folder / "jars", Path(scratch))
        _compile(made)
        # Another process may have been faster.
        if not kit.folder.is_dir():
            made.folder.replace(kit.folder)
    return kit


def _resolve(iceberg: str, target: Path, scratch: Path) -> None:
    options = [f"-Dmaven.repo.local={scratch / 'fetched'}", "-Dmaven.artifact.threads=16", f"-DoutputDirectory={target}"]
    pom = ["-f", str(SOURCES / "pom.xml"), f"-Diceberg={iceberg}"]
    command = ["mvn", "--batch-mode", "--quiet", "--strict-checksums", *pom, RESOLVER, "-DincludeScope=runtime", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise KitMissing(f"Maven cannot fetch the compatibility kit of Iceberg {iceberg}:\n" + "\n".join(said[:10]))


def _compile(kit: KitJars) -> None:
    environ = {name: text for name, text in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
    command = ["javac", "-nowarn", "-proc:none", "-d", str(kit.folder / "classes"), "-cp", kit.classpath, str(SOURCES / "Kit.java")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KitMissing(f"The compatibility kit needs a JDK from 17 up; this one says:\n{done.stderr}")
