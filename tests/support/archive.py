"""Makes the archive of Spark's classes: `python -m tests.support.archive`, once for an environment."""

import os
import tempfile
from pathlib import Path

from duckicelake.pipeline.common import spark_session as sessions
from duckicelake.pipeline.common.spark_session import SparkPlan, spark_session
from tests.support.java import QUIET, TIERED, find_archive, jar_cache
from tests.support.spark import JARS

FORMATS = ("csv", "json", "parquet", "orc")
MERGE = """
MERGE INTO h.a.t USING (SELECT max(id) AS id, part FROM given GROUP BY part) AS s ON t.id = s.id
 WHEN MATCHED THEN UPDATE SET name = 'm'
 WHEN NOT MATCHED THEN INSERT (id, part) VALUES (s.id, s.part)
"""


def make_archive() -> None:
    """Write it, if there is none: a session does what tests do, and Java notes the classes when it ends."""
    archive = find_archive()
    if archive is None or archive.exists():
        return
    # On a busy machine Java takes longer to write the archive than a job waits for its end.
    sessions._SECONDS_TO_STOP = 300.0
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        # Java would end with a signal on half of one
        made = Path(folder) / "made.jsa"
        _use_spark(Path(folder), f"{TIERED} {QUIET} -XX:ArchiveClassesAtExit={made}")
        made.replace(archive)


def _use_spark(folder: Path, java_options: str) -> None:
    conf = {
        "spark.driver.defaultJavaOptions": java_options,
        "spark.sql.catalog.h": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.h.type": "hadoop",
        "spark.sql.catalog.h.warehouse": str(folder / "warehouse"),
    }
    with spark_session(SparkPlan(jar_cache(), folder, conf=conf, jars=JARS), os.environ, print) as spark:
        rows = spark.sql("SELECT id, id % 3 AS part, cast(id AS string) AS name, double(id) AS x FROM range(100)")
        for written in FORMATS:
            rows.write.format(written).save(str(folder / written))
            spark.read.format(written).schema(rows.schema).load(str(folder / written)).groupBy("part").count().collect()
        spark.sql("CREATE TABLE h.a.t (id bigint, part bigint, name string, x double) USING iceberg PARTITIONED BY (part)")
        rows.createTempView("given")
        spark.sql("INSERT INTO h.a.t SELECT * FROM given ORDER BY part").collect()
        spark.sql(MERGE).collect()
        spark.sql("SELECT t.part, count(DISTINCT t.name) FROM h.a.t JOIN given USING (id) GROUP BY t.part ORDER BY 1").collect()
        spark.sql("CALL h.system.rewrite_data_files(table => 'a.t')").collect()


if __name__ == "__main__":
    make_archive()
