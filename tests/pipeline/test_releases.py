"""The jobs on the older releases of Spark, each installed beside the one that the other tests use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from duckicelake.pipeline.common.java import RELEASES, JarUnavailable, iceberg_jars, source_jars
from tests.support.java import jar_cache

OLDER = ("3.5.9", "4.0.5")
ROOT = Path(__file__).parents[2]
JOBS = tuple(f"tests/pipeline/{job}" for job in ("ingest", "maintain", "profile", "publish", "transfer", "verify"))
# Spark 3.5 looks at the version of pandas by a class that Python has given up, and at its columns by a function that pandas will give up.
IGNORED = ("distutils Version classes are deprecated", "is_categorical_dtype is deprecated")
CALM = tuple(option for words in IGNORED for option in ("-W", f"ignore:{words}:DeprecationWarning"))


def install(release: str) -> Path:
    """A folder with that PySpark and what it needs, kept between runs."""
    folder = jar_cache() / f"pyspark-{release}"
    if not (folder / "pyspark").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder)]
        subprocess.run([*pip, f"pyspark=={release}"], check=True, timeout=900)
    return folder


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("release", OLDER)
def test_jobs_run_on_an_older_release(release: str) -> None:
    """All that the ordinary run asks of the jobs holds there."""
    path = os.pathsep.join(map(str, (ROOT, install(release))))
    asked = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "-m", "not long", *CALM, *JOBS]
    done = subprocess.run(asked, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=5400, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "passed" in done.stdout.splitlines()[-1]


def test_every_release_has_libraries_of_its_own() -> None:
    """They are made for one release of Spark, and for its Scala."""
    assert list(RELEASES) == ["3.5", "4.0", "4.1"]
    for release in RELEASES:
        iceberg, avro = iceberg_jars(f"{release}.7")[0], source_jars("/a/folder", f"{release}.7")[0]
        scala = iceberg.artifact.rpartition("_")[2]
        assert iceberg.artifact == f"iceberg-spark-runtime-{release}_{scala}"
        assert (avro.artifact, avro.version.rpartition(".")[0]) == (f"spark-avro_{scala}", release)


@pytest.mark.parametrize("release", ["3.4.4", "4.2.0", "5"])
def test_other_releases_are_refused(release: str) -> None:
    """By name, before Spark starts; of a newer one it is said that Iceberg does not support it yet."""
    with pytest.raises(JarUnavailable, match=f"Spark {release} is not among .*3.5, 4.0, 4.1") as refusal:
        iceberg_jars(release)
    assert ("no runtime for it yet" in str(refusal.value)) == (release != "3.4.4")
