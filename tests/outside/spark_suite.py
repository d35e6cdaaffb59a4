"""Iceberg's own tests of Spark, from its test jars: those that have a REST catalog among their parameters, with that alone.

The lake lies in a local folder, because the tests move and add files with Java's own means.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.outside.results import Result
from tests.outside.stand import Stand
from tests.rck.jars import RESOLVER
from tests.support.java import calm_java

ICEBERG = "1.11.0"
"""Of 1.12.0 the registry has no test jars, and only the runtime, whose classes are renamed."""
SOURCES = Path(__file__).parent / "spark"
MAIN_CLASS = "org.apache.iceberg.spark.SparkSuite"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
PACKAGE = "org.apache.iceberg.spark"
CLASSES = """
TestFileRewriteCoordinator
TestSparkDistributionAndOrderingUtil
TestSparkReadConf
TestSparkWriteConf
actions.TestComputePartitionStatsAction
actions.TestComputeTableStatsAction
actions.TestMigrateTableAction
actions.TestSnapshotTableAction
extensions.TestAlterTableSchema
extensions.TestAncestorsOfProcedure
extensions.TestCherrypickSnapshotProcedure
extensions.TestComputePartitionStatsProcedure
extensions.TestComputeTableStatsProcedure
extensions.TestConflictValidation
extensions.TestCreateChangelogViewProcedure
extensions.TestExpireSnapshotsProcedure
extensions.TestFastForwardBranchProcedure
extensions.TestMetadataTables
extensions.TestMigrateTableProcedure
extensions.TestPartitionedWritesToWapBranch
extensions.TestPublishChangesProcedure
extensions.TestRegisterTableProcedure
extensions.TestRemoveOrphanFilesProcedure
extensions.TestRewriteDataFilesProcedure
extensions.TestRewriteManifestsProcedure
extensions.TestRewritePositionDeleteFilesProcedure
extensions.TestRewriteTablePathProcedure
extensions.TestRollbackToSnapshotProcedure
extensions.TestRollbackToTimestampProcedure
extensions.TestSetCurrentSnapshotProcedure
extensions.TestSetWriteDistributionAndOrdering
extensions.TestSnapshotTableProcedure
extensions.TestViews
source.TestDataFrameWriterV2
source.TestDataSourceOptions
source.TestMicroBatchPlanningUtils
source.TestRemoteScanPlanning
source.TestRequiredDistributionAndOrdering
source.TestSparkPlanningUtil
source.TestSparkReadMetrics
source.TestSparkStagedScan
source.TestSparkTable
source.TestSparkWriteMetrics
source.TestStructuredStreamingRead3
sql.TestAggregatePushDown
sql.TestAlterTable
sql.TestCreateTable
sql.TestDropTable
sql.TestPartitionedWrites
sql.TestPartitionedWritesToBranch
sql.TestRefreshTable
sql.TestSparkDefaultValues
sql.TestUnpartitionedWrites
sql.TestUnpartitionedWritesToBranch
""".split()

# Spark's list of what it opens of Java's modules.
OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)


def fetch(cache: Path) -> Path:
    """Return the folder with the jars and our classes; the first time Maven fetches 60 MB."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:12]
    folder = cache / f"iceberg-spark-{ICEBERG}-{digest}"
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    options = [f"-Diceberg={ICEBERG}", f"-DoutputDirectory={folder / 'jars'}", "-DincludeScope=runtime", "-DexcludeTransitive=true"]
    subprocess.run(["mvn", "--batch-mode", "--quiet", "--strict-checksums", "-f", SOURCES / "pom.xml", RESOLVER, *options], check=True)
    classes = folder / "classes"
    compile_ = ["javac", "-nowarn", "-proc:none", "-d", classes, "-cp", f"{folder / 'jars'}/*:{SPARK_JARS}/*"]
    subprocess.run([*compile_, *sorted(SOURCES.glob("*.java"))], check=True)
    services = classes / "META-INF" / "services"
    services.mkdir(parents=True)
    (services / "org.junit.jupiter.api.extension.Extension").write_text(f"{MAIN_CLASS}$RestOnly\n")
    (folder / "complete").touch()
    return folder


def run(cache: Path, stand: Stand, chosen: list[str]) -> dict[str, Result]:
    """Run the classes that are chosen, as `sql.TestAlterTable` or `sql.TestAlterTable#testDropColumn`, or all; the results by test."""
    folder = fetch(cache)
    settings = {
        "outside.uri": stand.server.uri,
        "outside.warehouse": "lake",
        **{f"spark.sql.catalog.{name}.warehouse": "lake" for name in ("testrest", "spark_catalog")},
    }
    with tempfile.TemporaryDirectory() as scratch:
        java = ["java", "-Xmx1800m", "-XX:+UseSerialGC", *calm_java().split(), f"-Djava.io.tmpdir={scratch}"]
        java += [word for module in OPENED for word in ("--add-opens", f"java.base/{module}=ALL-UNNAMED")]
        java += [f"-D{name}={text}" for name, text in settings.items()]
        classpath = f"{SOURCES}:{folder / 'classes'}:{folder / 'jars'}/*:{SPARK_JARS}/*"
        names = [f"{PACKAGE}.{name}" for name in chosen or CLASSES]
        log = cache / "spark.log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                [*java, "-cp", classpath, MAIN_CLASS, *names],
                cwd=scratch,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            results = {}
            try:
                for line in process.stdout:
                    results |= parse_result(line)
            finally:
                process.kill()
    assert results, log.read_text(errors="replace")[-3000:]
    return results


def parse_result(line: str) -> dict[str, Result]:
    """Return the result that a line of the program has, if it has one."""
    words = line.rstrip("\n").split("\t")
    if words[0] != "result":
        return {}
    sys.stderr.write(f"{words[1]} {words[2]}\n")
    return {words[2]: Result(words[1], words[3].replace("\\n", "\n").replace("\\\\", "\\"))}
