"""How tests start Java: for short work."""

import os
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path

import pyspark

from duckicelake.pipeline.common.java import NoJava, get_java_home

TIERED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m"
"""Short queries never earn back what Java's second compiler costs. The first alone has 48 MiB for its code: in a session of many tests
the thread that makes room there took a third of the time."""

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Java goes on without an archive that is not of its classes, and would say so."""


@cache
def find_archive() -> Path | None:
    """Where the archive of Spark's classes is, or is to be: it is of one Java and one folder of Spark. None without a Java."""
    try:
        home = get_java_home(os.environ, jar_cache())
    except NoJava:
        return None
    made_of = "\n".join(map(str, (home.resolve(), os.stat(home / "bin" / "java").st_mtime_ns, pyspark.__file__, pyspark.__version__)))
    return Path(sys.prefix) / "share" / "duckicelake" / f"spark-{blake2b(made_of.encode(), digest_size=8).hexdigest()}.jsa"


@cache
def calm_java() -> str:
    """Return the options of a Java process that runs Spark; with the archive it starts in half of the time."""
    archive = find_archive()
    return TIERED if archive is None or not archive.exists() else f"{TIERED} {QUIET} -XX:SharedArchiveFile={archive}"


def jar_cache() -> Path:
    """Where jars are kept between runs, shared with the product's own jobs."""
    return Path.home() / ".cache" / "duckicelake"
