"""Stock clients whose tokens come from an OIDC server: PyIceberg, Spark, DuckDB and Trino, with no other keys."""

from collections.abc import Generator

import duckdb
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, UnauthorizedError

from duckicelake.embedded.object_store import ROLE_ARN
from tests.interop.keys.accounts import add_trino
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import WAREHOUSE
from tests.support.lakes import FreshLake, open_duckdb
from tests.support.oidc.provider import SECRET
from tests.support.oidc.running import Issuing, issuing
from tests.support.spark import Spark
from tests.support.tiers import long_after
from tests.support.trino.server import Trino, TrinoRefused

ROWS = ("a", "rows")


@pytest.fixture
def issuer() -> Generator[Issuing]:
    """An OIDC server."""
    with issuing() as running:
        yield running


@pytest.fixture
def guarded(lake: FreshLake, issuer: Issuing) -> Generator[Guarded]:
    """A server that believes it: who has the role `readers` there reads the namespace a, `etl` writes there."""
    with guard(lake, sts_role_arn=ROLE_ARN, oidc_issuers=[issuer.settings()]) as running:
        lake.duckdb().execute("CREATE TABLE a.rows AS SELECT range AS i FROM range(50000)")
        managed = Managed(running)
        assert managed.manage("POST", "roles", {"name": "acme:readers"}).status == 204
        assert managed.manage("POST", "principals", {"name": "acme:etl", "has-secret": False}).status == 200
        managed.give("read", "namespace:a", "role:acme:readers")
        managed.give("read,write,create,drop", "namespace:a", "acme:etl")
        yield running


def open_catalog(guarded: Guarded, **told: str) -> RestCatalog:
    """The catalog as PyIceberg opens it."""
    catalog = RestCatalog("lake", uri=guarded.server.uri, warehouse=WAREHOUSE, **told)
    guarded.lake.opened.callback(catalog.close)
    return catalog


@pytest.mark.whole
def test_pyiceberg_reads_with_a_token_and_is_told_why_it_may_not_write(guarded: Guarded, issuer: Issuing) -> None:
    """By a role that its token names, with keys that the catalog vends; without the role there is nothing."""
    catalog = open_catalog(guarded, token=issuer.token("alice", groups=["readers"]))
    table = catalog.load_table(ROWS)
    scanned = table.scan().to_arrow()
    assert scanned.num_rows == 50_000
    with pytest.raises(ForbiddenError, match="'acme:alice' has no right"):
        catalog.create_table(("a", "mine"), schema=scanned.schema)
    with pytest.raises(ForbiddenError, match="'acme:alice' has no right"):
        table.transaction().set_properties({"a": "b"}).commit_transaction()
    with pytest.raises((ForbiddenError, OSError)):
        table.append(scanned.slice(0, 1))
    assert guarded.lake.duckdb().execute("SELECT count(*) FROM lake.a.rows").fetchone() == (50_000,)
    with pytest.raises(NoSuchTableError):
        open_catalog(guarded, token=issuer.token("alice")).load_table(ROWS)
    with pytest.raises(UnauthorizedError):
        open_catalog(guarded, token=issuer.token("alice", aud="another"))


def test_pyiceberg_gets_its_token_from_the_issuer_and_writes(guarded: Guarded, issuer: Issuing) -> None:
    """With the id and the secret that it has there."""
    catalog = open_catalog(guarded, credential=f"etl:{SECRET}", **{"oauth2-server-uri": issuer.token_url, "scope": "openid"})
    more = pa.table({"i": pa.array([7, 8], pa.int64())})
    made = catalog.create_table(("a", "made"), schema=more.schema)
    made.append(more)
    made.delete("i = 7")
    assert guarded.lake.duckdb().execute("FROM lake.a.made").fetchall() == [(8,)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_gets_its_token_from_the_issuer_or_is_given_one(guarded: Guarded, issuer: Issuing, spark: Spark) -> None:
    """It writes as `etl`; as who only reads it is refused."""
    shared = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": guarded.server.uri,
        ".warehouse": WAREHOUSE,
        ".cache-enabled": "false",
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".rest.auth.type": "oauth2",
        ".oauth2-server-uri": issuer.token_url,
        ".header.X-Iceberg-Access-Delegation": "vended-credentials",
        ".client.region": "us-east-1",
    }
    by_credential = {".credential": f"etl:{SECRET}", ".scope": "openid"}
    by_token = {".token": issuer.token("alice", groups=["readers"]), ".token-refresh-enabled": "false"}
    for name, own in (("etl", by_credential), ("alice", by_token)):
        for key, setting in {**shared, **own}.items():
            spark.session.conf.set(f"spark.sql.catalog.{name}_{guarded.lake.name}{key}", setting)
    etl, alice = (f"{name}_{guarded.lake.name}" for name in ("etl", "alice"))
    spark.session.sql(f"INSERT INTO {etl}.a.rows VALUES (-1)")
    assert spark.arrow(f"SELECT count(*) AS c FROM {alice}.a.rows").to_pylist() == [{"c": 50_001}]
    with pytest.raises(Py4JJavaError, match="'acme:alice' has no right"):
        spark.session.sql(f"CREATE TABLE {alice}.a.mine (i BIGINT)")


@pytest.mark.parametrize("way", long_after(1, ["token", "credential"]))
def test_duckdb_gets_its_token_from_the_issuer_or_is_given_one(guarded: Guarded, issuer: Issuing, way: str) -> None:
    """It writes as `etl`; with the token of one who reads it is refused."""
    conn = open_duckdb()
    guarded.lake.opened.callback(conn.close)
    told = f"TOKEN '{issuer.token('alice', groups=['readers'])}'"
    if way == "credential":
        told = f"CLIENT_ID 'etl', CLIENT_SECRET '{SECRET}', OAUTH2_SERVER_URI '{issuer.token_url}', OAUTH2_SCOPE 'openid'"
    conn.execute(f"CREATE SECRET theirs (TYPE iceberg, {told})")
    conn.execute(f"ATTACH '{WAREHOUSE}' AS ice (TYPE iceberg, ENDPOINT '{guarded.server.uri}', SECRET theirs, DEFAULT_SCHEMA 'a')")
    assert conn.execute("SELECT count(*) FROM ice.a.rows").fetchone() == (50_000,)
    if way == "credential":
        conn.execute("INSERT INTO ice.a.rows VALUES (-1)")
        assert guarded.lake.duckdb().execute("SELECT count(*) FROM lake.a.rows").fetchone() == (50_001,)
    else:
        with pytest.raises(duckdb.Error, match="'acme:alice' has no right"):
            conn.execute("CREATE TABLE ice.a.mine (i BIGINT)")


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.xdist_group("trino")
def test_trino_gets_its_token_from_the_issuer_or_is_given_one(guarded: Guarded, issuer: Issuing, trino: Trino) -> None:
    """It writes as `etl`; with the token of one who reads it is refused."""
    prefix = "iceberg.rest-catalog.oauth2"
    etl = {f"{prefix}.credential": f"etl:{SECRET}", f"{prefix}.server-uri": issuer.token_url, f"{prefix}.scope": "openid"}
    token = {f"{prefix}.token": issuer.token("alice", groups=["readers"]), f"{prefix}.token-refresh-enabled": "false"}
    writer, reader = (add_trino(trino, guarded, None, own) for own in (etl, token))
    trino.arrow(f"INSERT INTO {writer}.a.rows VALUES (-1)")
    assert trino.arrow(f"SELECT count(*) AS c FROM {reader}.a.rows").to_pylist() == [{"c": 50_001}]
    with pytest.raises(TrinoRefused) as refused:
        trino.arrow(f"CREATE TABLE {reader}.a.mine (i bigint)")
    assert any("'acme:alice' has no right" in cause for cause in refused.value.causes)
    for name in (writer, reader):
        trino.arrow(f"DROP CATALOG {name}")
