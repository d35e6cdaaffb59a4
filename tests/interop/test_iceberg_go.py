"""iceberg-go reads functions: the one client today that lists and loads them. Needs a Go toolchain, and modules from Go's proxy."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake

pytestmark = pytest.mark.long

RELEASE = "v0.7.0"
BUILD_SECONDS = 1200
MODULE = f"module functions\n\ngo 1.25.9\n\nrequire github.com/apache/iceberg-go {RELEASE}\n"
PROGRAM = """
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	ctx := context.Background()
	catalog, err := rest.NewCatalog(ctx, "lake", os.Args[1], rest.WithWarehouseLocation("lake"))
	check(err)
	out := json.NewEncoder(os.Stdout)
	for name, err := range catalog.ListFunctions(ctx, table.Identifier{"main"}) {
		check(err)
		found, err := catalog.LoadFunction(ctx, name)
		check(err)
		current := []any{}
		for _, definition := range found.Definitions() {
			current = append(current, definition.CurrentVersion())
		}
		metadata := found.Metadata()
		check(out.Encode(map[string]any{
			"name": name, "metadata": metadata, "current": current, "definitions": found.Definitions(),
		}))
	}
	_, err = catalog.LoadFunction(ctx, table.Identifier{"main", "missing"})
	check(out.Encode(map[string]any{"name": []string{"main", "missing"}, "error": err.Error()}))
}
"""
MACROS = """
CREATE MACRO add_one(x INTEGER) AS x + 1;
CREATE OR REPLACE MACRO add_one(x INTEGER) AS 1 + x;
CREATE MACRO twice(x INTEGER) AS x * 2, (x VARCHAR) AS x || x;
CREATE MACRO up_to(most INTEGER) AS TABLE SELECT id, name FROM t WHERE id < most;
CREATE MACRO parts(x INTEGER) AS {'a': x, 'b': [x]}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that lists and loads all functions of `main`."""
    folder = tmp_path_factory.mktemp("iceberg_go")
    (folder / "go.mod").write_text(MODULE)
    (folder / "main.go").write_text(PROGRAM)
    for arguments in (("mod", "tidy"), ("build", "-o", "functions", ".")):
        subprocess.run(["go", *arguments], cwd=folder, check=True, timeout=BUILD_SECONDS, env={**os.environ, "GOTOOLCHAIN": "local"})
    return folder / "functions"


def test_iceberg_go_reads_what_the_server_publishes(lake: FreshLake, program: Path) -> None:
    """Scalar and table macros, overloads, replaced versions and nested results: each definition as the API answers it."""
    lake.duckdb().execute("CREATE TABLE t (id INTEGER, name VARCHAR);" + MACROS)
    with serve(make_settings(lake)) as server:
        printed = subprocess.run([program, server.uri], check=True, capture_output=True, text=True, timeout=60).stdout
        found = {line["name"][-1]: line for line in map(json.loads, printed.splitlines())}
        assert sorted(found) == ["add_one", "missing", "parts", "twice", "up_to"]
        for name in sorted(set(found) - {"missing"}):
            served = server.get(f"namespaces/main/functions/{name}").json["metadata"]
            assert found[name]["definitions"] == [drop_defaults(definition) for definition in served["definitions"]]
    assert "NoSuchFunctionException" in found["missing"]["error"]
    assert [len(definition["versions"]) for definition in found["add_one"]["definitions"]] == [2]
    [current] = found["add_one"]["current"]
    assert {text["dialect"]: text["sql"] for text in current["representations"]}["duckdb"] == "(1 + x)"
    assert len(found["twice"]["definitions"]) == 2


def drop_defaults(definition: dict[str, Any]) -> dict[str, Any]:
    """A definition as a client writes it, without what is false or absent."""
    versions = [{key: value for key, value in version.items() if value is not False} for version in definition["versions"]]
    return {**definition, "versions": versions}
