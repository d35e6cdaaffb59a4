"""The texts of `duckicelake connect`: code and statements that connect each client and data tool to a lake.

Python tools open the catalog with PyIceberg first. `TABLE` stands for a table of the user's. `cli` and `serve` print the texts, and `smoke`
uses the settings of DuckDB and PyIceberg. Only `format_reader` sends requests: it gets credentials from the running server.
Source: docs/clients.md says which versions were tried with such configurations, and what each tool cannot do.
"""

import http.client
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast
from urllib.error import HTTPError
from urllib.parse import quote as quote_path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import duckdb
from psycopg.conninfo import conninfo_to_dict

from duckicelake.commands.embedded import format_command
from duckicelake.commands.facts import CREDENTIAL_SOURCES, HIDDEN, Facts
from duckicelake.config import SettingsError
from duckicelake.embedded.ducklake import ATTACHED_VERSION, format_secret, quote
from duckicelake.errors import NotAuthorized, ServiceUnavailable

Client = Literal["pyiceberg", "spark", "trino", "duckdb", "ducklake"]
DUCKDB_NOTE = (
    f"-- DuckDB {duckdb.__version__} (pip install duckdb=={duckdb.__version__}), whose ducklake extension has DuckLake 1.0, "
    "is what this server works with\n"
)
NEWER_NOTE = "-- The lake has DuckLake {}: attach it with DuckDB 2.0 or newer, because DuckDB 1.5 cannot\n"
SPARK_PACKAGES = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,org.apache.iceberg:iceberg-aws-bundle:1.12.0"


def list_clients() -> dict[Client, Callable[[Facts], str]]:
    """Return the function that formats the text of each client."""
    return {
        "pyiceberg": format_pyiceberg,
        "spark": format_spark,
        "trino": format_trino,
        "duckdb": format_duckdb,
        "ducklake": format_ducklake,
    }


def format_snippet(facts: Facts, client: Client) -> str:
    """Return the text for one client. Raises: SettingsError: the client is DuckLake's, and the warehouse no lake."""
    if client == "ducklake" and not facts.is_lake:
        raise SettingsError(f"{facts.warehouse} is a route to another catalog, which DuckDB reads as Iceberg: use --client duckdb.")
    return list_clients()[client](facts)


def format_all(facts: Facts) -> str:
    """Return the texts for all clients, each under the client's name; of a route without that of DuckLake."""
    shown = {client: make for client, make in list_clients().items() if facts.is_lake or client != "ducklake"}
    return "\n".join(f"== {client} ==\n{make(facts)}" for client, make in shown.items())


def format_environment(facts: Facts) -> str:
    """Return the facts as shell exports (`s3.endpoint` is LAKE_S3_ENDPOINT), without facts that are null."""
    flat = {name: fact for name, fact in facts.format_json().items() if isinstance(fact, str)}
    return "".join(f"export LAKE_{name.replace('.', '_').upper()}={shlex.quote(fact)}\n" for name, fact in flat.items())


def format_json(facts: Facts) -> str:
    """Return the facts as one JSON object."""
    return json.dumps(facts.format_json(), indent=2) + "\n"


def format_welcome(lakes: Sequence[Facts]) -> str:
    """Return the text that `serve` prints when it is ready."""
    lines = [f"\nDuckIceLake is ready at {lakes[0].catalog_uri}" if lakes else "\nDuckIceLake is ready"]
    for facts in lakes:
        lines += [f"\nWarehouse {facts.warehouse!r}: data in {facts.ducklake_data_path}, Iceberg files in {facts.iceberg_path}"]
        lines += [_format_places(facts)]
        lines += ["\nDuckDB, as DuckLake (reads and writes):", format_ducklake(facts)]
        lines += ["PyIceberg:", format_pyiceberg(facts)]
    lines += [f"SQL at once, in another shell: {format_command('duckdb', shlex.quote('SHOW ALL TABLES'))}"]
    lines += [f"Every client, with its keys: {format_command('connect', '--show-secrets')}. Stop with Ctrl-C."]
    return "\n".join(lines)


def _format_places(facts: Facts) -> str:
    """Return the addresses of the lake's Postgres and S3."""
    parts = conninfo_to_dict(facts.ducklake_dsn)
    postgres = f"Postgres at {parts.get('host') or 'localhost'}:{parts.get('port') or 5432}"
    return f"{postgres}, S3 at {facts.s3_endpoint or 'AWS'}" if facts.ducklake_data_path.startswith("s3") else postgres


def list_pyiceberg(facts: Facts) -> dict[str, str]:
    """Return the properties of PyIceberg's catalog. With an account, PyIceberg gets vended credentials with each table."""
    properties = {"type": "rest", "uri": facts.catalog_uri, "warehouse": facts.warehouse}
    if facts.credential is not None:
        return properties | {"credential": facts.credential, "oauth2-server-uri": facts.token_uri}
    return properties | _list_s3(facts)


def format_pyiceberg(facts: Facts) -> str:
    """Return Python that opens the catalog with PyIceberg."""
    arguments = ",\n    ".join(f"{name!r}: {fact!r}" for name, fact in list_pyiceberg(facts).items())
    return (
        "from pyiceberg.catalog import load_catalog\n"
        f"catalog = load_catalog({facts.warehouse!r}, **{{\n    {arguments},\n}})\n"
        "print(catalog.list_namespaces())\n"
    )


def format_spark(facts: Facts) -> str:
    """Return a `spark-sql` command line for Spark 4.1.

    Iceberg reads `env:NAME` from the environment, so no secret is among the arguments, which every user of the machine can see.
    """
    name = f"spark.sql.catalog.{_identifier(facts.warehouse)}"
    secret = dict[str, str]()
    properties = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        name: "org.apache.iceberg.spark.SparkCatalog",
        f"{name}.type": "rest",
        f"{name}.uri": facts.catalog_uri,
        f"{name}.warehouse": facts.warehouse,
    }
    if facts.is_lake:
        properties[f"{name}.default-namespace"] = "main"
    if facts.credential is not None:
        secret = {"LAKE_CREDENTIAL": facts.credential}
        properties |= {f"{name}.{key}": fact for key, fact in _list_spark_account(facts, "env:LAKE_CREDENTIAL").items()}
    elif facts.s3_access_key_id is not None:
        properties[f"{name}.io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
        secret = {"LAKE_S3_SECRET_ACCESS_KEY": facts.s3_secret_access_key or ""}
        keys = _list_s3(facts, region="client.region") | {"s3.secret-access-key": "env:LAKE_S3_SECRET_ACCESS_KEY"}
        properties |= {f"{name}.{key}": fact for key, fact in keys.items()}
        properties[f"{name}.s3.path-style-access"] = "true"
    lines = [f"spark-sql --packages {SPARK_PACKAGES}"] + [f"--conf {shlex.quote(f'{key}={fact}')}" for key, fact in properties.items()]
    exports = "".join(f"export {variable}={shlex.quote(text)}\n" for variable, text in secret.items())
    return exports + " \\\n  ".join(lines) + "\n"


def _list_spark_account(facts: Facts, credential: str) -> dict[str, str]:
    """Return the properties with which Spark authenticates and requests vended credentials."""
    properties = {
        "rest.auth.type": "oauth2",
        "credential": credential,
        "oauth2-server-uri": facts.token_uri,
        "scope": "catalog",
        "header.X-Iceberg-Access-Delegation": "vended-credentials,remote-signing",
    }
    on_s3 = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "client.region": facts.s3_region}
    return properties | (on_s3 if facts.is_on_s3 else {})


def format_trino(facts: Facts) -> str:
    """Return a Trino catalog file (`etc/catalog/NAME.properties`)."""
    properties = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": facts.catalog_uri,
        "iceberg.rest-catalog.warehouse": facts.warehouse,
        "iceberg.rest-catalog.case-insensitive-name-matching": "true",
        "iceberg.rest-catalog.nested-namespace-enabled": "true",
        # Trino does not check gc.enabled, and would remove files that only DuckLake's rows reference.
        "iceberg.remove-orphan-files.min-retention": "36500d",
    }
    keys: dict[str, str | None] = {"s3.aws-access-key": facts.s3_access_key_id, "s3.aws-secret-key": facts.s3_secret_access_key}
    if facts.credential is not None:
        keys = {
            "iceberg.rest-catalog.security": "OAUTH2",
            "iceberg.rest-catalog.oauth2.credential": facts.credential,
            "iceberg.rest-catalog.oauth2.server-uri": facts.token_uri,
            "iceberg.rest-catalog.oauth2.scope": "catalog",
            "iceberg.rest-catalog.vended-credentials-enabled": str(facts.is_on_s3).lower(),
        }
    if facts.s3_access_key_id is not None or (facts.credential is not None and facts.is_on_s3):
        properties |= {"fs.native-s3.enabled": "true", "s3.path-style-access": "true"}
        keys |= {"s3.endpoint": facts.s3_endpoint, "s3.region": facts.s3_region}
    properties |= {key: fact for key, fact in keys.items() if fact is not None}
    return "".join(f"{key}={fact}\n" for key, fact in properties.items())


def list_duckdb(facts: Facts, name: str) -> list[str]:
    """Return the statements that attach the catalog in DuckDB by that name. With an account, DuckDB gets credentials with each table."""
    if facts.credential is None:
        options = "AUTHORIZATION_TYPE 'none', ACCESS_DELEGATION_MODE 'none'"
        secret = list[str]()
    else:
        client_id, client_secret = facts.split_credential()
        shown = f"CLIENT_ID {quote(client_id)}, CLIENT_SECRET {quote(client_secret)}, OAUTH2_SERVER_URI {quote(facts.token_uri)}"
        secret, options = [f"CREATE OR REPLACE SECRET {name} (TYPE iceberg, {shown})"], f"SECRET {name}"
    # Without a default schema, DuckDB resolves `main` to its own schema.
    endpoint = f"TYPE iceberg, ENDPOINT {quote(facts.catalog_uri)}, {options}, DEFAULT_SCHEMA 'main'"
    return [*secret, f"ATTACH {quote(facts.warehouse)} AS {name} ({endpoint})"]


def format_duckdb(facts: Facts) -> str:
    """Return SQL that attaches the catalog with DuckDB's iceberg extension."""
    keys = _secret(facts) if facts.credential is None else ""
    statements = "".join(f"{statement};\n" for statement in list_duckdb(facts, f"iceberg_{_identifier(facts.warehouse)}"))
    return DUCKDB_NOTE + "INSTALL httpfs; LOAD httpfs; INSTALL avro; LOAD avro; INSTALL iceberg; LOAD iceberg;\n" + keys + statements


def format_ducklake(facts: Facts) -> str:
    """Return SQL that attaches the lake with DuckDB's ducklake extension."""
    is_newer = facts.ducklake_version not in (None, ATTACHED_VERSION)
    note = NEWER_NOTE.format(facts.ducklake_version) if is_newer else DUCKDB_NOTE
    start = note + "INSTALL httpfs; LOAD httpfs; INSTALL postgres; LOAD postgres; INSTALL ducklake; LOAD ducklake;\n"
    return start + _secret(facts) + facts.ducklake_attach + ";\nUSE lake;\n"


def _secret(facts: Facts) -> str:
    keys = facts.find_s3_keys()
    return "" if keys is None else format_secret(keys) + ";\n"


def _list_s3(facts: Facts, region: str = "s3.region") -> dict[str, str]:
    if facts.s3_access_key_id is None:
        return {}
    properties = {
        "s3.endpoint": facts.s3_endpoint,
        region: facts.s3_region,
        "s3.access-key-id": facts.s3_access_key_id,
        "s3.secret-access-key": facts.s3_secret_access_key,
    }
    return {name: fact for name, fact in properties.items() if fact is not None}


def _identifier(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


REQUEST_TIMEOUT_S = 30.0
LOAD_EXTENSIONS = "INSTALL httpfs; LOAD httpfs; INSTALL postgres; LOAD postgres; INSTALL ducklake; LOAD ducklake;\n"
SECRET_KEYS = ("s3.secret-access-key", "s3.session-token")


def format_reader(facts: Facts, *, show_secrets: bool) -> str:
    """Request credentials from the running server, and return SQL that attaches the tables that the account may read.

    Raises: SettingsError: no account is configured. NotAuthorized: the server refuses. ServiceUnavailable: it does not respond
    """
    if facts.credential is None:
        raise SettingsError(f"Only an account gets credentials for read-only DuckLake: say id:secret of one by {CREDENTIAL_SOURCES}.")
    client_id, secret = facts.split_credential()
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret, "scope": "catalog"}
    token = _request_json(Request(facts.token_uri, urlencode(form).encode(), method="POST"))["access_token"]
    path = f"{facts.catalog_uri}/v1/{quote_path(facts.prefix, safe='')}/ducklake-credentials"
    given = _request_json(Request(path, headers={"Authorization": f"Bearer {token}"}))
    text = LOAD_EXTENSIONS + "".join(f"{statement};\n" for statement in given["statements"])
    for hidden in () if show_secrets else _list_secrets(given):
        text = text.replace(hidden, HIDDEN)
    return text


def _list_secrets(given: Mapping[str, Any]) -> list[str]:
    password = conninfo_to_dict(given["dsn"]).get("password")
    keys = [each["config"][name] for each in given["storage-credentials"] for name in SECRET_KEYS]
    return [*keys, *([str(password)] if password else [])]


def _request_json(request: Request) -> Any:
    try:
        with urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except HTTPError as error:
        with error:
            raise NotAuthorized(f"The server refuses credentials for read-only DuckLake: {_read_refusal(error)}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServiceUnavailable(f"No catalog answers at {request.host} ({type(error).__name__}). Is the server running?") from None


def _read_refusal(error: HTTPError) -> str:
    try:
        body = json.loads(error.read())
    except ValueError:
        body = None
    match body:
        case {"error": {"message": str(message)}}:
            return message
        case {"error_description": str(description)}:
            return description
        case _:
            return f"status {error.code}"


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
        # A worker reads no file without it, and the sink's consumer group is named by it.
        "name": "iceberg-sink",
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "topics": "events",
        "iceberg.tables": "main.events",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.tables.evolve-schema-enabled": "true",
        "iceberg.catalog.type": "rest",
        **{f"iceberg.catalog.{name}": fact for name, fact in _list_java(facts).items()},
    }
    return (
        "# Jars: iceberg-kafka-connect, -aws, -aws-bundle, -parquet and -orc 1.11.0, hadoop-client-api and -runtime 3.4.3, and theirs.\n"
        "# Make the topic control-iceberg first.\n" + "".join(f"{name}={_escape_property(fact)}\n" for name, fact in properties.items())
    )


def _escape_property(text: str) -> str:
    """Return a value as Java's properties files spell it, which are read as Latin-1."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[start : start + 2], "big") for start in range(0, len(units), 2)]
    escaped = "".join("\\\\" if code == ord("\\") else chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)
    return "\\" + escaped if escaped.startswith(" ") else escaped
