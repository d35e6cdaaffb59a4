"""PyIceberg's integration tests, from its source package on PyPI, with Spark in the process of the tests and its program that fills
tables with Spark.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.outside.results import Result
from tests.outside.stand import Stand, copy_sources, list_spark

VERSION = "0.12.0"
PACKAGES = (
    f"pyiceberg[pyarrow,pandas,duckdb,s3fs,snappy,sql-sqlite,pyiceberg-core]=={VERSION}",
    "pytest>=9.1,<9.2",
    "pytest-lazy-fixtures",
    "pytest-mock",
    "requests-mock",
    "fastavro",
    "pytz",
    "thrift",
    "pyspark[connect]==4.1.4",
    "polars",
    # Newer releases have no relation.fetchone(), which a test calls.
    "duckdb==1.5.5",
)
SECOND = ("moto[server]",)
"""Installed afterwards: pip finds no release of botocore for it and for s3fs, and the tests need none."""
OTHER_CATALOGS = ("hive", "Hive", "memory_catalog", "sqlite_catalog")
PYTEST_OPTIONS = ("-p", "no:unraisableexception", "-m", "integration", "-q", "--no-header")
NOT_INSTALLED = ("test_ray_", "test_daft_")
"""Daft wants an older PyIceberg, and Ray is larger than all the rest: `scripts/outside clients` asks Daft."""


CONNECTED = r'SparkSession\.builder\.remote\("sc://localhost:15002"\)'
STARTED = 'SparkSession.builder.remote("local[2]")'
HIVE_CATALOG = r'(?s)\n    "hive": load_catalog\(.*?\n    \),'


def fetch(cache: Path) -> Path:
    """Return the folder with the sources, and with a Python for them; the first time pip fetches both."""
    folder = cache / f"pyiceberg-{VERSION}"
    if (folder / "complete-with-spark").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source = f"pyiceberg=={VERSION}"
    subprocess.run([*pip, "download", "--no-deps", "--no-binary", "pyiceberg", "--dest", folder, source], check=True)
    with tarfile.open(folder / f"pyiceberg-{VERSION}.tar.gz") as packed:
        packed.extractall(folder / "unpacked", filter="data")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    own = [folder / "venv" / "bin" / "python", *pip[1:]]
    subprocess.run([*own, "install", *PACKAGES], check=True)
    subprocess.run([*own, "install", *SECOND], check=True)
    (folder / "complete-with-spark").touch()
    return folder


def run(cache: Path, stand: Stand, chosen: list[str]) -> dict[str, Result]:
    """Run the tests that need no Hive; the results by the test's id."""
    folder = fetch(cache)
    store = stand.lake.store
    replaced = {
        r"http://localhost:8181": stand.server.uri,
        r"s3://warehouse(?=[/\"])": f"s3://{stand.bucket}",
        r"(?<=http://)localhost:9000": store.endpoint.removeprefix("http://"),
        r"(?<=s3_endpoint=')localhost:9000": store.endpoint.removeprefix("http://"),
        r'("s3\.access-key-id": )"admin"': rf'\1"{store.access_key_id}"',
        r'("s3\.secret-access-key": )"password"': rf'\1"{store.secret_access_key}"',
        CONNECTED: STARTED,
        HIVE_CATALOG: "",
    }
    with tempfile.TemporaryDirectory() as scratch:
        work, results = Path(scratch) / "work", Path(scratch) / "results"
        for part in ("tests", "dev"):
            copy_sources(folder / "unpacked" / f"pyiceberg-{VERSION}" / part, work / part, ".py", replaced)
        (work / "pyproject.toml").write_text((folder / "unpacked" / f"pyiceberg-{VERSION}" / "pyproject.toml").read_text())
        (work / "pyiceberg_plugin.py").write_text(Path(__file__).with_name("pyiceberg_plugin.py").read_text())
        (work / "conf").mkdir()
        (work / "conf" / "spark-defaults.conf").write_text("".join(f"{name} {text}\n" for name, text in list_spark(stand, "rest").items()))
        environment = {
            **os.environ,
            "PYTHONPATH": str(work),
            "AWS_ACCESS_KEY_ID": store.access_key_id,
            "AWS_SECRET_ACCESS_KEY": store.secret_access_key,
            "AWS_REGION": store.region,
            "OUTSIDE_RESULTS": str(results),
            "SPARK_CONF_DIR": str(work / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "OUTSIDE_LEFT_OUT": ",".join((*OTHER_CATALOGS, *NOT_INSTALLED)),
        }
        python = folder / "venv" / "bin" / "python"
        subprocess.run([python, "dev/provision.py"], cwd=work, env=environment, check=True)
        command = [python, "-m", "pytest", "-p", "pyiceberg_plugin", *PYTEST_OPTIONS]
        subprocess.run([*command, *(chosen or ["tests/integration"])], cwd=work, env=environment, check=False)
        found = [json.loads(line) for line in results.read_text().splitlines()]
    return {name.removeprefix("tests/integration/"): Result(outcome, reason) for name, outcome, reason in found}
