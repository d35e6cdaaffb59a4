"""The table a.t1, and objects of others around it by what is tried on them."""

from dataclasses import dataclass
from typing import Any

from tests.rest.auth.principals import Guarded
from tests.rest.auth.vended import open_root

BUCKET = "lake"
PLACES = [
    *("sibling", "other-namespace", "longer-namespace", "dropped", "parent", "root", "case-of-parent", "longer-name"),
    *("shorter-location", "longer-location", "metadata-of-another"),
]


@dataclass(frozen=True, slots=True)
class Laid:
    """Keys of an object of the table, of its folder, and of others' objects."""

    own: str
    own_folder: str
    others: dict[str, str]


def make_tables(guarded: Guarded) -> None:
    """Make tables beside, above and below in name; `a.gone` is to be dropped."""
    conn = guarded.lake.duckdb()
    conn.execute("CREATE SCHEMA ab")
    for table in ("a.t1", "a.t10", "b.t1", "ab.t1", "a.gone"):
        conn.execute(f"CREATE TABLE {table} AS SELECT range AS i FROM range(100000)")
    guarded.get("admin", "namespaces/a/tables/t10")


def lay_out(guarded: Guarded, location: str, twin: str) -> Laid:
    """Drop `a.gone`, and place objects of nobody around the table, which is at that location; one in a folder of another case."""
    guarded.lake.duckdb().execute("DROP TABLE a.gone")
    root, name = open_root(guarded), guarded.lake.name
    data = f"{name}/data"
    files = {folder: list_keys(root, f"{data}/{folder}/")[0] for folder in ("a/t1", "a/t10", "b/t1", "ab/t1", "a/gone")}
    others = {
        "sibling": files["a/t10"],
        "other-namespace": files["b/t1"],
        "longer-namespace": files["ab/t1"],
        "dropped": files["a/gone"],
        "parent": put(root, f"{data}/a/stray.parquet"),
        "root": put(root, f"{name}/stray.parquet"),
        "case-of-parent": put(root, f"{data}/a/{twin}/x.parquet"),
        "longer-name": put(root, f"{data}/a/t1x/{files['a/t1'].rpartition('/')[2]}"),
        "shorter-location": put(root, f"{location[:-1]}/x"),
        "longer-location": put(root, f"{location}0/x"),
        "metadata-of-another": list_keys(root, f"{name}/iceberg/a/t10-")[0],
    }
    return Laid(files["a/t1"], f"{data}/a/t1", others)


def put(root: Any, key: str) -> str:
    """Place an object as root."""
    root.put_object(Bucket=BUCKET, Key=key, Body=b"secret")
    return key


def list_keys(root: Any, prefix: str) -> list[str]:
    """Objects under a prefix, as root sees them."""
    return [found["Key"] for found in root.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]]
