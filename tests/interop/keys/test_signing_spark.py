"""Java's own signer, in Spark: a client without keys that has each request to the store signed by the catalog."""

from collections.abc import Mapping

import pytest
from py4j.protocol import Py4JJavaError

from tests.interop.keys.accounts import add_spark
from tests.interop.keys.test_signing import signing as signing
from tests.rest.auth.principals import Guarded, secret_of
from tests.rest.serving import WAREHOUSE
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


TOLD = {".header.X-Iceberg-Access-Delegation": "remote-signing"}


def add_signed(spark: Spark, guarded: Guarded, principal: str, how: Mapping[str, str] = TOLD) -> str:
    """Make the catalog known to Spark with an id and a secret; returns its name there."""
    name = f"signed{len(how)}_{principal}_{guarded.lake.name}"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": guarded.server.uri,
        ".warehouse": WAREHOUSE,
        ".cache-enabled": "false",
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".rest.auth.type": "oauth2",
        ".credential": f"{principal}:{secret_of(principal)}",
        ".oauth2-server-uri": f"{guarded.server.uri}/v1/oauth/tokens",
        ".client.region": "us-east-1",
        **how,
    }
    for key, setting in settings.items():
        spark.session.conf.set(f"spark.sql.catalog.{name}{key}", setting)
    return name


def test_spark_reads_and_writes_by_signatures_alone(signing: Guarded, spark: Spark) -> None:
    """A writer appends, makes tables, with rows too, and deletes from one; a reader reads, and the store never sees its write.

    The reader is set up as `connect` prints it: it would take keys, and there are none.
    """
    writer, reader = add_signed(spark, signing, "writer"), add_spark(spark, signing, "reader")
    spark.session.sql(f"INSERT INTO {writer}.a.rows VALUES (7), (8)")
    spark.session.sql(f"CREATE TABLE {writer}.a.made (i BIGINT)")
    spark.session.sql(f"INSERT INTO {writer}.a.made VALUES (7), (8)")
    spark.session.sql(f"DELETE FROM {writer}.a.made WHERE i = 7")
    assert spark.arrow(f"SELECT i FROM {reader}.a.made").to_pylist() == [{"i": 8}]
    assert spark.arrow(f"SELECT count(*) AS c FROM {reader}.a.rows").to_pylist() == [{"c": 50002}]
    spark.session.sql(f"CREATE TABLE {writer}.a.copied AS SELECT i + 1 AS i FROM {writer}.a.made")
    assert signing.lake.duckdb().execute("FROM lake.a.copied").fetchall() == [(9,)]
    with pytest.raises(Py4JJavaError, match="no right to write files"):
        spark.session.sql(f"INSERT INTO {reader}.a.rows VALUES (9)")
    # nobody tells it where to ask
    untold = add_signed(spark, signing, "writer", {".s3.remote-signing-enabled": "true", ".s3.path-style-access": "true"})
    assert spark.arrow(f"SELECT count(*) AS c FROM {untold}.a.rows").to_pylist() == [{"c": 50002}]
    spark.session.sql(f"CREATE TABLE {untold}.a.untold AS SELECT i FROM {untold}.a.copied")
    spark.session.sql(f"INSERT INTO {untold}.a.untold VALUES (10)")
    assert signing.lake.duckdb().execute("FROM lake.a.untold ORDER BY i").fetchall() == [(9,), (10,)]
    assert signing.lake.duckdb().execute("SELECT count(*) FROM lake.a.rows").fetchone() == (50002,)
