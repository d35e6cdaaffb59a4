"""The texts of `duckicelake connect --client …` for data tools beyond the five of `snippets`.

Python tools open the catalog with PyIceberg first. `TABLE` stands for a table of the user's.
Source: docs/clients.md says which versions were tried with such configurations, and what each tool cannot do.
"""

import json
from collections.abc import Callable, Mapping
from typing import Literal, cast

from duckicelake.commands.facts import Facts
from duckicelake.commands.snippets import Client, format_pyiceberg, format_snippet, list_pyiceberg
from duckicelake.config import SettingsError
from duckicelake.embedded.ducklake import quote

Tool = Literal["polars", "daft", "pandas", "ray", "datafusion", "dlt", "dbt", "sqlmesh", "clickhouse", "flink", "kafka-connect"]
NEEDS_LAKE: frozenset[Tool] = frozenset({"dbt", "sqlmesh"})
"""Tools that attach the DuckLake itself, so that a route to another catalog has no text for them."""

TABLE = 'TABLE = "main.flights"\n'


def list_tools() -> dict[Tool, Callable[[Facts], str]]:
    """Return the function that formats the text of each tool."""
    return {
        "polars": format_polars,
        "daft": format_daft,
        "pandas": format_pandas,
        "ray": format_ray,
        "datafusion": format_datafusion,
        "dlt": format_dlt,
        "dbt": format_dbt,
        "sqlmesh": format_sqlmesh,
        "clickhouse": format_clickhouse,
        "flink": format_flink,
        "kafka-connect": format_kafka_connect,
    }


def format_client(facts: Facts, client: Client | Tool) -> str:
    """Return the text for one client or tool. Raises: SettingsError: it attaches a DuckLake, and the warehouse is none"""
    if client in list_tools():
        return format_tool(facts, client)
    return format_snippet(facts, cast("Client", client))


def format_tool(facts: Facts, tool: Tool) -> str:
    """Return the text for one tool. Raises: SettingsError: the tool attaches a DuckLake, and the warehouse is none"""
    if tool in NEEDS_LAKE and not facts.is_lake:
        raise SettingsError(f"{facts.warehouse} is a route to another catalog, and {tool} attaches a DuckLake. Use another client.")
    return list_tools()[tool](facts)


def format_yaml(facts: Facts) -> str:
    """Return a `.pyiceberg.yaml`, which PyIceberg, its command, Polars and pandas look for in the home folder."""
    lines = [f"  {json.dumps(facts.warehouse)}:", *(f"    {name}: {json.dumps(fact)}" for name, fact in list_pyiceberg(facts).items())]
    return "\n".join([f"default-catalog: {json.dumps(facts.warehouse)}", "catalog:", *lines]) + "\n"


def format_polars(facts: Facts) -> str:
    """Return Python that reads and writes with Polars; a sink takes the table's keys, because it looks for none itself."""
    return (
        '# pip install "polars[iceberg]" "pyiceberg[pyarrow,s3fs]" pyiceberg-core\n'
        + format_pyiceberg(facts)
        + TABLE
        + "import polars as pl\n"
        "table = catalog.load_table(TABLE)\n"
        "frame = pl.scan_iceberg(table)\n"
        'print(frame.head(5).collect())  # a table with a JSON column: pl.scan_iceberg(table, reader_override="pyiceberg")\n'
        '# frame.collect().write_iceberg(table, mode="append")\n'
        '# keys = {name: key for name, key in table.io.properties.items() if name.startswith("s3.") and isinstance(key, str)}\n'
        '# frame.sink_iceberg(table, mode="append", storage_options=keys)\n'
        "# To write format version 3, once: import duckicelake.pyiceberg_v3; duckicelake.pyiceberg_v3.install()\n"
    )


def format_daft(facts: Facts) -> str:
    """Return Python that reads and writes with Daft."""
    return (
        '# pip install "daft[iceberg]" "pyiceberg[pyarrow,s3fs]"\n'
        "# Daft reads NULL for defaults of format version 3, no deletion vectors, and no lists and maps of DuckDB's files.\n"
        + format_pyiceberg(facts)
        + TABLE
        + "import daft\n"
        "table = catalog.load_table(TABLE)\n"
        "frame = daft.read_iceberg(table)\n"
        "print(frame.limit(5).to_arrow())\n"
        '# frame.write_iceberg(table, mode="append")\n'
    )


def format_pandas(facts: Facts) -> str:
    """Return Python that reads and writes with pandas."""
    return (
        '# pip install "pandas>=3" "pyiceberg[pyarrow,s3fs,pyiceberg-core]"\n'
        + TABLE
        + f"PROPERTIES = {list_pyiceberg(facts)!r}\n"
        + "import pandas as pd\n"
        f"frame = pd.read_iceberg(TABLE, {facts.warehouse!r}, catalog_properties=PROPERTIES)\n"
        "print(frame.head())\n"
        f"# frame.to_iceberg(TABLE, {facts.warehouse!r}, catalog_properties=PROPERTIES, append=True)  # without append it overwrites\n"
    )


def format_ray(facts: Facts) -> str:
    """Return Python that reads and writes with Ray Data."""
    return (
        '# pip install "ray[data]" "pyiceberg[pyarrow,s3fs]"\n'
        + TABLE
        + f"CATALOG = { ({'name': facts.warehouse} | list_pyiceberg(facts))!r}\n"
        + "import ray\n"
        "rows = ray.data.read_iceberg(table_identifier=TABLE, catalog_kwargs=CATALOG)\n"
        "print(rows.take(5))\n"
        "# rows.write_iceberg(TABLE, catalog_kwargs=CATALOG)\n"
    )


def format_datafusion(facts: Facts) -> str:
    """Return Python that queries with DataFusion, which keeps the table as it was loaded."""
    return (
        '# pip install "pyiceberg[pyarrow,s3fs]==0.12.0" "pyiceberg-core==0.11.0" "datafusion==54.*"\n'
        "# A query of nothing but columns that an older file lacks returns another column: select a column that all files have, too.\n"
        + format_pyiceberg(facts)
        + TABLE
        + "from datafusion import SessionContext\n"
        "from pyiceberg_core.datafusion import IcebergDataFusionTable\n"
        "table = catalog.load_table(TABLE)\n"
        "texts = {name: text for name, text in table.io.properties.items() if isinstance(text, str)}\n"
        "context = SessionContext()\n"
        'context.register_table("t", IcebergDataFusionTable(\n'
        "    identifier=table.name(), metadata_location=table.metadata_location, file_io_properties=texts))\n"
        'print(context.table("t").limit(5))\n'
    )


def format_dlt(facts: Facts) -> str:
    """Return `.dlt/secrets.toml` for dlt's filesystem destination with `table_format="iceberg"`."""
    keys = {
        "aws_access_key_id": facts.s3_access_key_id,
        "aws_secret_access_key": facts.s3_secret_access_key,
        "endpoint_url": facts.s3_endpoint,
        "region_name": facts.s3_region,
    }
    return (
        '# .dlt/secrets.toml: pip install "dlt[pyiceberg,s3,filesystem]" "pyiceberg[pyarrow,s3fs]" sqlalchemy "sqlglot<29"\n'
        '# pipeline.run(…, table_format="iceberg"); bucket_url must be below ICEBERG_PATH or in allowed_locations\n'
        "[destination.filesystem]\n"
        f"bucket_url = {json.dumps(facts.iceberg_path.rstrip('/') + '/dlt')}\n"
        "[destination.filesystem.credentials]\n"
        f"{_format_toml(keys)}"
        "[iceberg_catalog]\n"
        f"iceberg_catalog_name = {json.dumps(facts.warehouse)}\n"
        'iceberg_catalog_type = "rest"\n'
        "[iceberg_catalog.iceberg_catalog_config]\n"
        f"{_format_toml({json.dumps(name): fact for name, fact in list_pyiceberg(facts).items()})}"
    )


def _format_toml(facts: Mapping[str, str | None]) -> str:
    return "".join(f"{name} = {json.dumps(fact)}\n" for name, fact in facts.items() if fact is not None)


def _format_ducklake_path(facts: Facts, scheme: str) -> str:
    return json.dumps(scheme + facts.ducklake_dsn)


def _list_duckdb_keys(facts: Facts) -> dict[str, str]:
    """Return the keys of the lake's S3 as DuckDB's secret of type s3 takes them."""
    keys = facts.find_s3_keys()
    if keys is None:
        return {}
    found = {"key_id": keys.access_key_id, "secret": keys.secret_access_key, "region": keys.region}
    if keys.endpoint is None:
        return found
    scheme, _, address = keys.endpoint.partition("://")
    return found | {"endpoint": address.rstrip("/"), "use_ssl": str(scheme == "https").lower(), "url_style": "path"}


def _format_secrets(facts: Facts) -> str:
    """Return the entry `secrets` of a DuckDB connection in dbt's and SQLMesh's files; empty if the lake has no keys."""
    keys = _list_duckdb_keys(facts)
    lines = "".join(f"          {name}: {json.dumps(key)}\n" for name, key in keys.items())
    return "      secrets:\n        - type: s3\n" + lines if keys else ""


def format_dbt(facts: Facts) -> str:
    """Return a profile for dbt-duckdb, which attaches the DuckLake itself."""
    return (
        '# profiles.yml: pip install dbt-duckdb "dbt-core<1.12"\n'
        "lake:\n"
        "  target: dev\n"
        "  outputs:\n"
        "    dev:\n"
        "      type: duckdb\n"
        '      path: ":memory:"\n'
        "      database: lake\n"
        "      schema: main\n"
        "      extensions: [ducklake, postgres, httpfs]\n"
        f"{_format_secrets(facts)}"
        "      attach:\n"
        f"        - path: {_format_ducklake_path(facts, 'ducklake:postgres:')}\n"
        "          alias: lake\n"
        "          is_ducklake: true\n"
        f"          options: {{METADATA_SCHEMA: {json.dumps(facts.ducklake_metadata_schema)}}}\n"
    )


def format_sqlmesh(facts: Facts) -> str:
    """Return a configuration for SQLMesh, which attaches the DuckLake itself; models are named `lake.schema.name`."""
    return (
        "# config.yaml: pip install sqlmesh\n"
        "gateways:\n"
        "  lake:\n"
        "    connection:\n"
        "      type: duckdb\n"
        "      extensions: [postgres, httpfs, ducklake]\n"
        f"{_format_secrets(facts)}"
        "      catalogs:\n"
        '        memory: ":memory:"\n'
        "        lake:\n"
        "          type: ducklake\n"
        f"          path: {_format_ducklake_path(facts, 'postgres:')}\n"
        f"          metadata_schema: {json.dumps(facts.ducklake_metadata_schema)}\n"
        "    state_connection:\n"
        "      type: duckdb\n"
        "      database: state.db\n"
        "default_gateway: lake\n"
        "model_defaults:\n"
        "  dialect: duckdb\n"
    )


def format_clickhouse(facts: Facts) -> str:
    """Return SQL that attaches the catalog in ClickHouse.

    With an account ClickHouse gets vended keys, without an endpoint (ClickHouse issue 93283), so it needs its own `storage_endpoint`.
    """
    bucket = facts.iceberg_path.partition("://")[2].partition("/")[0]
    settings = {"catalog_type": "rest", "warehouse": facts.warehouse, "storage_endpoint": f"{facts.s3_endpoint or ''}/{bucket}"}
    if facts.credential is not None:
        settings |= {"catalog_credential": facts.credential, "oauth_server_uri": facts.token_uri}
    shown = ", ".join(f"{name}={_quote_clickhouse(fact)}" for name, fact in settings.items())
    keys = [f"{facts.catalog_uri}/v1"]
    if facts.credential is None:
        keys += [facts.s3_access_key_id or "KEY", facts.s3_secret_access_key or "SECRET"]
    return (
        "-- A schema and its table are one quoted name. ClickHouse reads NULL for defaults of format version 3, and no fractions of TIME.\n"
        "SET allow_database_iceberg = 1, allow_insert_into_iceberg = 1, write_full_path_in_iceberg_metadata = 1;\n"
        f"CREATE DATABASE lake ENGINE = DataLakeCatalog({', '.join(_quote_clickhouse(fact) for fact in keys)})\n"
        f"  SETTINGS {shown};\n"
        "SELECT * FROM lake.`main.flights` LIMIT 5;\n"
    )


def _quote_clickhouse(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _list_java(facts: Facts) -> dict[str, str]:
    """Return the properties of Iceberg's Java catalog, without its type."""
    properties = {"uri": facts.catalog_uri, "warehouse": facts.warehouse, "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    if facts.credential is not None:
        return properties | {
            "rest.auth.type": "oauth2",
            "credential": facts.credential,
            "oauth2-server-uri": facts.token_uri,
            "scope": "catalog",
            "header.X-Iceberg-Access-Delegation": "vended-credentials",
            "client.region": facts.s3_region,
        }
    found = {
        "s3.endpoint": facts.s3_endpoint,
        "client.region": facts.s3_region,
        "s3.access-key-id": facts.s3_access_key_id,
        "s3.secret-access-key": facts.s3_secret_access_key,
        "s3.path-style-access": "true",
    }
    return properties | {name: fact for name, fact in found.items() if fact is not None}


def format_flink(facts: Facts) -> str:
    """Return SQL that makes the catalog known to Flink."""
    properties = {"type": "iceberg", "catalog-type": "rest", **_list_java(facts)}
    shown = ",\n  ".join(f"{quote(name)}={quote(fact)}" for name, fact in properties.items())
    return (
        "-- Java 17; in lib/: iceberg-flink-runtime-2.1-1.11.0, iceberg-aws-bundle-1.11.0, hadoop-client-api and -runtime 3.4.1\n"
        "-- Flink reads NULL for defaults of format version 3. For upserts: PRIMARY KEY (…) NOT ENFORCED, and the properties\n"
        "-- 'format-version'='2', 'write.upsert.enabled'='true'.\n"
        f"CREATE CATALOG lake WITH (\n  {shown}\n);\n"
        "USE CATALOG lake;\n"
    )


def format_kafka_connect(facts: Facts) -> str:
    """Return the properties of Iceberg's sink connector."""
    properties = {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "topics": "events",
        "iceberg.tables": "main.events",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.tables.evolve-schema-enabled": "true",
        "iceberg.catalog.type": "rest",
        **{f"iceberg.catalog.{name}": fact for name, fact in _list_java(facts).items()},
    }
    return (
        "# Iceberg's sink 1.11.0 with iceberg-aws-bundle and hadoop-client-api/-runtime 3.4.1. Make the topic control-iceberg first.\n"
        + "".join(f"{name}={_escape_property(fact)}\n" for name, fact in properties.items())
    )


def _escape_property(text: str) -> str:
    """Return a value as Java's properties files spell it, which are read as Latin-1."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[start : start + 2], "big") for start in range(0, len(units), 2)]
    escaped = "".join("\\\\" if code == ord("\\") else chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)
    return "\\" + escaped if escaped.startswith(" ") else escaped
