"""What `connect` prints for Spark, run as it is printed."""

import pytest

from duckicelake.commands.facts import format_facts
from duckicelake.commands.snippets import format_spark
from tests.rest.serving import make_settings
from tests.support.readers import Served
from tests.support.spark import Spark
from tests.support.spark_snippet import read_spark_settings


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_spark_snippet_reads(served: Served, spark: Spark) -> None:
    """Each `--conf` as Spark takes it; the packages are those that the session here has."""
    with served.lake.duckdb() as conn:
        conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    (lake,) = make_settings(served.lake).lakes()
    for name, value in read_spark_settings(format_spark(format_facts(lake, served.server.uri))).items():
        if name == "spark.sql.extensions":
            # read once, when a session begins
            assert spark.session.conf.get(name) == value
        else:
            spark.session.conf.set(name, value)
    assert spark.arrow("SELECT count(*) AS n FROM lake.main.t").column("n").to_pylist() == [100]
