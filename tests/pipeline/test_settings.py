"""What a job's session holds to, and what of its libraries and options users may bring themselves."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from duckicelake.commands.jobs.session import read_spark_settings
from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.java import Jar, iceberg_jars, join_options, leave_given, source_jars
from duckicelake.pipeline.common.rest import RestCatalog
from duckicelake.pipeline.common.spark_connect import FIXED_CONF, check_conf
from duckicelake.pipeline.common.spark_session import SparkPlan, catalog_settings, format_settings
from tests.cli.test_commands import settings_for
from tests.support.commands import environment, run
from tests.support.java import jar_cache
from tests.support.readers import Served
from tests.support.spark import CALM, CALM_OPTIONS

ICEBERG, AWS = iceberg_jars("4.1.4")
AVRO, *_ = source_jars("/a/folder", "4.1.4")

CATALOG_OF_KEYS = RestCatalog("http://there", "lake", "http://store", "here", "hidden key", "hidden secret")
CATALOG_OF_AN_ACCOUNT = RestCatalog("http://there", "lake", credential="me:hidden")
OF_SECRETS = (
    *("spark.sql.catalog.other.token", "spark.sql.catalog.other.jdbc.password", "spark.sql.catalog.other.header.Authorization"),
    *("spark.sql.catalog.other.s3.session-token", "spark.sql.catalog.other.adls.auth.shared-key.account.key"),
    *("fs.s3a.access.key", "fs.s3a.secret.key", "password", "spark.sql.catalog.other.s3.sse.key", "AWS_ACCESS_KEY_ID"),
)


def name_left(conf: dict[str, str]) -> list[Jar]:
    """What is still fetched of three libraries."""
    return list(leave_given((ICEBERG, AWS, AVRO), conf))


@pytest.mark.parametrize("name", FIXED_CONF)
def test_what_rows_depend_on_is_not_chosen(name: str) -> None:
    """By name, with what it must be; the same value in other capitals is no other."""
    check_conf({name: FIXED_CONF[name], "spark.executor.memory": "2g"})
    check_conf({name: f" {FIXED_CONF[name].upper()} "})
    with pytest.raises(BadRequest, match=rf"--conf {name}=x .* {FIXED_CONF[name]}.*leave it out"):
        check_conf({name: "x"})


@pytest.mark.whole
def test_a_setting_that_rows_depend_on_is_a_wrong_call(tmp_path: Path) -> None:
    """Before anything is opened, by what every job reads where Spark runs."""
    done = run(tmp_path, "pipeline", "maintain", "--conf", "spark.sql.files.ignoreCorruptFiles=true")
    assert (done.status, "ignoreCorruptFiles=true" in done.err, "leave it out" in done.err) == (2, True, True), done.err
    with pytest.raises(BadRequest, match="caseSensitive=true"):
        read_spark_settings({"master": "local", "memory": "1g", "conf": ["spark.sql.caseSensitive=true"]})


def test_options_of_java_are_joined() -> None:
    """What is given wins, but for the time zone, and Java has one collector of garbage."""
    ours = ["-Da=1", "-XX:+UseSerialGC"]
    assert join_options(ours, "") == "-Da=1 -XX:+UseSerialGC -Duser.timezone=UTC"
    assert join_options(ours, " -Da=2 -Duser.timezone=x ") == "-Da=1 -XX:+UseSerialGC -Da=2 -Duser.timezone=x -Duser.timezone=UTC"
    assert join_options(ours, "-XX:+UseG1GC -Xss4m") == "-Da=1 -XX:+UseG1GC -Xss4m -Duser.timezone=UTC"


@pytest.mark.parametrize(
    ("conf", "left"),
    [
        pytest.param({}, [ICEBERG, AWS, AVRO], id="none"),
        pytest.param({"spark.jars": "hdfs://h/driver.jar, hdfs://h/iceberg-spark-runtime-4.1_2.13-1.12.0-x.jar"}, [AWS, AVRO], id="jar"),
        pytest.param({"spark.jars": "s3a://b/iceberg-spark-runtime.jar"}, [AWS, AVRO], id="bare"),
        pytest.param({"spark.jars": "http://h/iceberg-aws-bundle-1.12.0.jar,http://h/spark-avro_2.13-4.1.0.jar"}, [ICEBERG], id="others"),
        pytest.param(
            {"spark.jars": "http://h/spark-avro_2.12-4.1.0.jar,http://h/iceberg-aws-bundle-x.jar"}, [ICEBERG, AWS, AVRO], id="unlike"
        ),
        pytest.param({"spark.jars.packages": "a:b:1,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.10.0"}, [AWS, AVRO], id="package"),
        pytest.param(
            {
                "spark.jars": "http://h/iceberg-spark-runtime-4.1_2.13-1.jar",
                "spark.jars.packages": "org.apache.iceberg:iceberg-aws-bundle:1.10.0",
            },
            [AVRO],
            id="both",
        ),
    ],
)
def test_what_is_given_is_not_fetched(conf: dict[str, str], left: list[Jar]) -> None:
    """Else it would be there twice."""
    assert name_left(conf) == left


@pytest.mark.parametrize(
    "conf",
    [
        pytest.param({"spark.jars": "/x/iceberg-spark-runtime-3.5_2.13-1.11.0.jar"}, id="spark"),
        pytest.param({"spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.12:1.11.0"}, id="scala"),
    ],
)
def test_iceberg_for_another_spark_is_refused(conf: dict[str, str]) -> None:
    """By its name, with the one that is wanted."""
    ((key, text),) = conf.items()
    name = text.rpartition("/")[2].rpartition("iceberg:")[2].replace(":", "-").removesuffix(".jar")
    with pytest.raises(BadRequest, match=rf"--conf {key}: {name} is made for another Spark.*iceberg-spark-runtime-4.1_2.13"):
        name_left(conf)


def test_a_given_library_is_there(tmp_path: Path) -> None:
    """Spark itself would go on without it, and fail later."""
    jar = tmp_path / "iceberg-spark-runtime-4.1_2.13-1.11.0.jar"
    for text in (str(jar), jar.as_uri()):
        with pytest.raises(BadRequest, match=f"--conf spark.jars: there is no file {jar}"):
            name_left({"spark.jars": text})
    jar.touch()
    assert name_left({"spark.jars": f"{jar},{jar.as_uri()}"}) == [AWS, AVRO]


@pytest.mark.parametrize(
    ("master", "cores"),
    [(None, 3), ("local", 1), ("local[8]", 8), ("local[4, 2]", 4), ("local[*]", os.cpu_count()), ("spark://host:7077", None)],
)
def test_what_one_machine_does_at_once_is_known(tmp_path: Path, master: str | None, cores: int | None) -> None:
    """A shuffle has so many parts there; elsewhere Spark decides."""
    assert SparkPlan(tmp_path, tmp_path, threads=3, master=master).cores == cores


def write_folder(folder: Path) -> None:
    """Two files, the second one damaged inside."""
    folder.mkdir()
    for number in range(2):
        lines = "".join(f"{number * 20_000 + i},{i * i % 9973}\n" for i in range(20_000))
        (folder / f"{number}.csv.gz").write_bytes(gzip.compress(f"id,n\n{lines}".encode(), mtime=0))
    with (folder / "1.csv.gz").open("r+b") as file:
        file.seek(60_000)
        file.write(b"\xff" * 1000)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_damaged_files_stop_a_run_whatever_spark_is_set_to(served: Served, tmp_path: Path) -> None:
    """Spark's own file of settings may let it pass over them: the job's session does not. All libraries are given: none is fetched."""
    write_folder(tmp_path / "in")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "spark.sql.files.ignoreCorruptFiles true\nspark.sql.files.ignoreMissingFiles true\nspark.sql.ansi.enabled false\n"
    )
    jars = ",".join(str(jar_cache() / "jars" / jar.file_name) for jar in (*iceberg_jars(), *source_jars("in")))
    settings = settings_for(served.lake, port=str(served.server.port))
    settings |= {"SPARK_CONF_DIR": str(tmp_path / "conf"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    java = "-Duser.timezone=America/New_York -XX:+UseParallelGC"
    conf = ["--conf", f"spark.jars={jars}", "--conf", f"spark.driver.extraJavaOptions={java}"]
    done = run(tmp_path, "pipeline", "ingest", "in", "raw.t", *CALM_OPTIONS, *conf, settings=settings)
    assert (done.status, "1.csv.gz" in done.err, "fetching" in done.err) == (1, True, False), done.err
    (tmp_path / "in" / "1.csv.gz").unlink()
    done = run(tmp_path, "pipeline", "ingest", "in", "raw.t", *CALM_OPTIONS, *conf, settings=settings)
    assert (done.status, "20000 rows = 20000 in" in done.out) == (0, True), done.err
    assert not list((tmp_path / "cache" / "duckicelake" / "jars").glob("*.jar"))


PROBE = """
import os, sys
from pathlib import Path
from duckicelake.pipeline.common.spark_session import SparkPlan, spark_session

folder, conf = Path(sys.argv[1]), dict(word.split("=", 1) for word in sys.argv[2:])
with spark_session(SparkPlan(folder / "cache", folder / "scratch", conf=conf), os.environ, print) as spark:
    zone = spark.sql("SELECT reflect('java.time.ZoneId', 'systemDefault')").first()[0]
    print(zone, *sorted(jar.rpartition("/")[2] for jar in spark.sparkContext.getConf().get("spark.jars").split(",")))
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_packages_are_there_once_and_go_to_executors(tmp_path: Path) -> None:
    """Spark's own resolution finds them, here in a folder; what goes to executors is what `spark.jars` has in the end."""
    jars = jar_cache() / "jars"
    rules = tmp_path / "ivy.xml"
    pattern = f'<artifact pattern="{jars}/[artifact]-[revision].[ext]"/>'
    resolver = f'<resolvers><filesystem name="here">{pattern}</filesystem></resolvers>'
    rules.write_text(f'<ivysettings><settings defaultResolver="here"/>{resolver}</ivysettings>')
    iceberg, aws = iceberg_jars()
    conf = CALM | {
        "spark.jars": str(jars / aws.file_name),
        "spark.jars.packages": f"{iceberg.group}:{iceberg.artifact}:{iceberg.version}",
        "spark.jars.ivySettings": str(rules),
        "spark.jars.ivy": str(tmp_path / "ivy"),
        "spark.driver.extraJavaOptions": "-Duser.timezone=America/New_York",
    }
    argv = [sys.executable, "-c", PROBE, str(tmp_path), *(f"{name}={text}" for name, text in conf.items())]
    done = subprocess.run(argv, cwd=tmp_path, env=environment({}), capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["UTC", aws.file_name, f"{iceberg.group}_{iceberg.file_name}"], done.stderr
    assert not list((tmp_path / "cache" / "jars").iterdir())


@pytest.mark.parametrize("held", [CATALOG_OF_KEYS, CATALOG_OF_AN_ACCOUNT], ids=["keys", "account"])
def test_spark_shows_no_secret_of_a_catalog(held: RestCatalog, tmp_path: Path) -> None:
    """Neither on its pages nor in its log of events, by the names of the settings, also where Spark 3.5 and 4.0 would."""
    hides = re.compile(format_settings(SparkPlan(tmp_path, tmp_path), [], [])["spark.redaction.regex"])
    settings = {f"spark.sql.catalog.lake.{name}": text for name, text in catalog_settings(held).items()}
    shown = {name for name in settings if not hides.search(name)}
    assert [name for name in shown if "hidden" in settings[name]] == []
    assert "spark.sql.catalog.lake.uri" in shown
    assert all(map(hides.search, OF_SECRETS))
