"""What `connect --client …` prints for data tools: pandas runs it as it is printed, the others' languages take it."""

import tomllib
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
import sqlglot
import yaml

from duckicelake.commands.facts import Facts, build_route_facts
from duckicelake.commands.snippets import NEEDS_LAKE, Tool, format_spark, format_tool, format_yaml, list_pyiceberg, list_tools
from duckicelake.config import SettingsError
from tests.cli.test_snippets import PLAIN, facts
from tests.rest.hostile.test_injection import TEXTS

__all__ = ["facts"]

ODD = [each for each in TEXTS if each.id not in ("nul", "long")]
PYTHON: tuple[Tool, ...] = ("polars", "daft", "pandas", "ray", "datafusion")


def make_odd(text: str, *, with_account: bool) -> Facts:
    """Facts whose secrets and names are a text."""
    return replace(
        PLAIN,
        credential=f"id:{text}" if with_account else None,
        warehouse=text,
        iceberg_path=f"s3://b/{text}",
        ducklake_dsn=f"host=x password={text}",
        s3_secret_access_key=text,
    )


def test_pandas_reads(facts: Facts, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is printed, but for the name of the table."""
    names: dict[str, object] = {}
    exec(format_tool(facts, "pandas").replace("main.flights", "main.t"), names)
    assert len(names["frame"]) == 100  # pyright: ignore[reportArgumentType]
    assert capsys.readouterr().out


def test_pyiceberg_finds_its_file(facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--format yaml` is what PyIceberg, its command, Polars and pandas look for."""
    (tmp_path / ".pyiceberg.yaml").write_text(format_yaml(facts))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    from pyiceberg.utils.config import Config  # noqa: PLC0415  it reads the environment at import

    config = Config()
    assert config.get_default_catalog_name() == facts.warehouse
    assert config.get_catalog_config(facts.warehouse) == list_pyiceberg(facts)


@pytest.mark.parametrize("with_account", [True, False])
@pytest.mark.parametrize("text", ODD)
def test_python_takes_it_as_texts(text: str, with_account: bool) -> None:
    """Whatever a secret or a name is made of, the program is the same."""
    odd = make_odd(text, with_account=with_account)
    plain = replace(PLAIN, credential=PLAIN.credential if with_account else None)
    for tool in PYTHON:
        shapes = [compile(format_tool(facts, tool), tool, "exec").co_names for facts in (plain, odd)]
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize("with_account", [True, False])
@pytest.mark.parametrize("text", ODD)
def test_files_give_back_what_was_put_in(text: str, with_account: bool) -> None:
    """YAML, TOML and properties, as their readers understand them."""
    odd = make_odd(text, with_account=with_account)
    assert yaml.safe_load(format_yaml(odd)) == {"default-catalog": text, "catalog": {text: list_pyiceberg(odd)}}
    dlt = tomllib.loads(format_tool(odd, "dlt"))
    assert dlt["iceberg_catalog"]["iceberg_catalog_config"] == list_pyiceberg(odd)
    assert dlt["destination"]["filesystem"]["credentials"]["aws_secret_access_key"] == text
    dbt = yaml.safe_load(format_tool(odd, "dbt"))["lake"]["outputs"]["dev"]
    assert dbt["attach"][0]["path"] == f"ducklake:postgres:{odd.ducklake_dsn}"
    assert dbt["secrets"][0]["secret"] == text
    sqlmesh = yaml.safe_load(format_tool(odd, "sqlmesh"))["gateways"]["lake"]["connection"]
    assert sqlmesh["catalogs"]["lake"]["path"] == f"postgres:{odd.ducklake_dsn}"
    lines = format_tool(odd, "kafka-connect").split("\n")
    assert len(lines) == len(format_tool(replace(odd, **PLACE), "kafka-connect").split("\n"))
    assert all(line.isascii() for line in lines)
    # A worker in standalone mode refuses a file without it.
    assert "name=iceberg-sink" in lines


PLACE = {"warehouse": "lake", "s3_secret_access_key": "s"}


@pytest.mark.parametrize("text", ODD)
def test_sql_takes_it_as_texts(text: str) -> None:
    """ClickHouse's and Flink's statements keep their number."""
    odd = make_odd(text, with_account=True)
    statements = [len(sqlglot.parse(format_tool(facts, "clickhouse"), read="clickhouse")) for facts in (PLAIN, odd)]
    assert statements[0] == statements[1]
    with duckdb.connect() as conn:
        flink = [len(conn.extract_statements(_as_select(format_tool(facts, "flink")))) for facts in (PLAIN, odd)]
    assert flink[0] == flink[1]


def _as_select(flink: str) -> str:
    """Flink's statement with its properties as a list of comparisons, which DuckDB's tokenizer reads alike."""
    return flink.replace("CREATE CATALOG lake WITH", "SELECT").replace("USE CATALOG lake", "SELECT 1")


def test_each_name_has_its_text() -> None:
    """With the address and the warehouse; what attaches a DuckLake has none for a route to another catalog."""
    route = build_route_facts("other", "http://127.0.0.1:9")
    for tool in list_tools():
        if tool in NEEDS_LAKE:
            with pytest.raises(SettingsError, match="other is a route"):
                format_tool(route, tool)
        else:
            assert "http://127.0.0.1:9" in format_tool(route, tool)
            assert "other" in format_tool(route, tool)


def test_spark_starts_in_main() -> None:
    """Where DuckDB starts too: dbt-spark makes views without naming a schema."""
    assert "spark.sql.catalog.lake.default-namespace=main" in format_spark(PLAIN)
    assert "default-namespace" not in format_spark(build_route_facts("other", "http://127.0.0.1:9"))
