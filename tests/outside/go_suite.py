"""iceberg-go's conformance and integration tests of REST catalogs, from its module."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.outside.results import Result
from tests.outside.stand import Stand, copy_sources

VERSION = "v0.7.0"
MODULE = "github.com/apache/iceberg-go"
TESTS = "TestRestCatalogConformance|TestRestIntegration|TestEndpointNegotiation"
LEFT_OUT = "TestScanPlanningJava"
"""These ask a server of their own, written in Java."""


def fetch() -> Path:
    """Return the folder of the module in Go's cache, which Go fetches the first time."""
    command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    done = subprocess.run(command, env={**os.environ, "GOFLAGS": "-mod=mod"}, capture_output=True, text=True, check=True)
    return Path(json.loads(done.stdout)["Dir"])


def run(cache: Path, stand: Stand, chosen: list[str]) -> dict[str, Result]:
    """Run the tests; the results by the test's name. The sources always lie at one place, so that Go compiles them once."""
    store, work = stand.lake.store, cache / f"iceberg-go-{VERSION}"
    replaced = {
        r"http://localhost:8181": stand.server.uri,
        r"s3://warehouse(?=[/\"])": f"s3://{stand.bucket}",
        r'(S3AccessKeyID: +)"admin"': rf'\1"{store.access_key_id}"',
        r'(S3SecretAccessKey: +)"password"': rf'\1"{store.secret_access_key}"',
    }
    shutil.rmtree(work, ignore_errors=True)
    copy_sources(fetch(), work, ".go", replaced)
    work.joinpath("go.mod").chmod(0o644)
    work.joinpath("go.sum").chmod(0o644)
    tests = ["-run", "|".join(chosen) or TESTS, "-skip", LEFT_OUT]
    command = ["go", "test", "-json", "-mod=mod", "-count=1", "-tags=integration", *tests, "./catalog/rest"]
    environment = {**os.environ, "AWS_S3_ENDPOINT": store.endpoint, "AWS_REGION": store.region}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    results = read_results(map(json.loads, filter(lambda line: line.startswith("{"), done.stdout.splitlines())))
    assert results, done.stdout[-2000:] + done.stderr[-2000:]
    return results


def read_results(events: Iterable[dict[str, Any]]) -> dict[str, Result]:
    """Return the results that `go test -json` tells, without those of tests that have subtests."""
    output: dict[str, list[str]] = {}
    found: dict[str, Result] = {}
    for event in events:
        test = event.get("Test")
        if test is None:
            continue
        if event["Action"] == "output":
            output.setdefault(test, []).append(event["Output"])
        if event["Action"] in {"pass", "fail", "skip"}:
            outcome = {"pass": "passed", "fail": "failed", "skip": "skipped"}[event["Action"]]
            found[test] = Result(outcome, "" if outcome == "passed" else "".join(output.get(test, [])[-40:]))
    parents = {test.rpartition("/")[0] for test in found}
    return {test: result for test, result in found.items() if test not in parents}
