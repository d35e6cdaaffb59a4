"""Lakes made elsewhere, taken over: where they lie, how many there are, and how to give them back."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from duckicelake.commands.check import list_findings
from duckicelake.commands.prepare import abandon_lake, get_default_iceberg_path, prepare_lake
from duckicelake.config import LakeSettings, SettingsError
from duckicelake.embedded.ducklake import LakeAddress, create_lake
from duckicelake.embedded.home import open_home
from duckicelake.errors import BadRequest, Forbidden, ServiceUnavailable
from duckicelake.store.objects import StoreSettings, open_objects
from tests.rest.serving import make_settings, serve
from tests.support.keys import format_s3_keys
from tests.support.lakes import FreshLake
from tests.support.shared_stack import SharedStack

Adopt = Callable[..., LakeSettings]


@pytest.fixture
def adopt(lake: FreshLake, tmp_path: Path) -> Adopt:
    """What makes a DuckLake with plain DuckDB, fills it and prepares it; settings may be given."""

    def adopt_one(schema: str, data_path: str, **settings: Any) -> LakeSettings:
        made = replace(lake, metadata_schema=schema, data_path=data_path)
        create_lake(made.extension_folder, LakeAddress(made.dsn, schema, data_path), format_s3_keys(made.store))
        with made.duckdb() as conn:
            conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
            conn.execute("INSERT INTO t VALUES (1000)")
        return prepare(lake, tmp_path, schema, **settings)

    return adopt_one


def prepare(lake: FreshLake, folder: Path, schema: str, **settings: Any) -> LakeSettings:
    """Prepare the DuckLake of a metadata schema."""
    return prepare_lake(to_settings(lake, schema, **settings), folder, lambda line: None)


def to_settings(lake: FreshLake, schema: str, **settings: Any) -> LakeSettings:
    """How to reach a lake in the fresh lake's database."""
    keys = lake.store
    return LakeSettings(
        name=f"lake-{len(schema)}",
        postgres_dsn=SecretStr(lake.dsn),
        metadata_schema=schema,
        s3_endpoint=keys.endpoint,
        s3_access_key_id=keys.access_key_id,
        s3_secret_access_key=SecretStr(keys.secret_access_key or ""),
        **settings,
    )


@pytest.mark.whole
def test_several_lakes_of_one_database_are_served_side_by_side(lake: FreshLake, adopt: Adopt, tmp_path: Path) -> None:
    """Schema `public`, an odd name and local files: each has its own paths, rows and answers."""
    ready = [
        adopt("public", f"s3://lake/{lake.name}/theirs/"),
        adopt('Other "lake" ü', f"s3://lake/{lake.name}/others/"),
        adopt("local", f"{tmp_path}/files"),
    ]
    assert [found.iceberg_path for found in ready] == [
        f"s3://lake/{lake.name}/theirs-iceberg/",
        f"s3://lake/{lake.name}/others-iceberg/",
        f"{tmp_path}/files-iceberg/",
    ]
    sections = {f"l{number}": {"metadata_schema": found.metadata_schema} for number, found in enumerate(ready)}
    with serve(make_settings(lake, lakes=sections)) as server:
        for number, found in enumerate(ready):
            answer = server.get(f"/v1/l{number}/namespaces/main/tables/t").json
            assert found.iceberg_path is not None
            assert answer["metadata-location"].removeprefix("file://").startswith(found.iceberg_path)
            with replace(lake, metadata_schema=found.metadata_schema).duckdb() as conn:
                conn.execute("INSERT INTO t VALUES (7)")
            assert server.get(f"/v1/l{number}/namespaces/main/tables/t").json["metadata"]["current-snapshot-id"] == 3


@pytest.mark.whole
def test_the_limit_of_what_is_restored_is_written_into_the_lake(lake: FreshLake, adopt: Adopt, tmp_path: Path) -> None:
    """Servers without the setting and jobs publish by it; a server that remembers the table publishes again when it changes."""
    ready = adopt("public", f"s3://lake/{lake.name}/theirs/")
    with serve(make_settings(lake, metadata_schema="public")) as server:
        with replace(lake, metadata_schema="public").duckdb() as conn:
            conn.execute("INSERT INTO t VALUES (1001)")
            conn.execute("CALL ducklake_flush_inlined_data('lake')")

        def list_operations() -> list[str]:
            snapshots = server.get("namespaces/main/tables/t").json["metadata"]["snapshots"]
            return [snapshot["summary"]["operation"] for snapshot in snapshots]

        assert list_operations() == ["append", "append", "append", "replace"]
        prepare(lake, tmp_path, "public", restored_max_bytes=0)
        assert list_operations() == ["append", "overwrite", "overwrite", "replace"]
        prepare(lake, tmp_path, "public")
        assert list_operations() == ["append", "overwrite", "overwrite", "replace"]
        prepare(lake, tmp_path, "public", restored_max_bytes=1_000_000)
        assert list_operations() == ["append", "append", "append", "replace"]
    assert ready.restored_max_bytes is None


def test_a_whole_bucket_needs_another_place_for_iceberg(lake: FreshLake, adopt: Adopt, tmp_path: Path) -> None:
    """Without one it says so, a folder inside is refused, one elsewhere is taken."""
    abandon_lake(to_settings(lake, lake.metadata_schema))
    with pytest.raises(SettingsError, match="set iceberg_path"):
        adopt("whole", "s3://lake/")
    with pytest.raises(BadRequest, match="one under the other"):
        prepare(lake, tmp_path, "whole", iceberg_path="s3://lake/iceberg/")
    assert prepare(lake, tmp_path, "whole", iceberg_path=f"{tmp_path}/iceberg/").data_path == "s3://lake/"


def test_a_relative_data_path_is_refused_with_the_remedy(
    lake: FreshLake, adopt: Adopt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` says the same, and the remedy works."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadRequest, match="relative") as refused:
        adopt("relative", "data/")
    statement = refused.value.message.partition("with ")[2].partition(", and attach")[0]
    lake.psycopg().execute(
        statement.replace("ducklake_metadata", "relative.ducklake_metadata").replace("/absolute/path/", f"{tmp_path}/data/").encode()
    )
    ready = prepare(lake, tmp_path, "relative")
    assert ready.iceberg_path == f"{tmp_path}/iceberg/"
    assert replace(lake, metadata_schema="relative").duckdb().sql("SELECT count(*) FROM t").fetchone() == (101,)


@pytest.mark.whole
def test_no_lake_gets_its_iceberg_files_below_another(lake: FreshLake, adopt: Adopt, tmp_path: Path) -> None:
    """The other lake's orphan clean-up would delete them."""
    adopt("outer", f"{tmp_path}/files/", iceberg_path=f"{tmp_path}/iceberg/")
    with pytest.raises(SettingsError, match="schema 'outer'.*Set iceberg_path"):
        adopt("inner", f"{tmp_path}/files/below/data/")
    assert prepare(lake, tmp_path, "inner", iceberg_path=f"{tmp_path}/elsewhere/").iceberg_path == f"{tmp_path}/elsewhere/"


def test_no_lake_comes_around_anothers_iceberg_files(lake: FreshLake, adopt: Adopt, tmp_path: Path) -> None:
    """Its own orphan clean-up would delete them."""
    adopt("inner", f"{tmp_path}/files/inner/data/", iceberg_path=f"{tmp_path}/files/inner/iceberg/")
    with pytest.raises(SettingsError, match="schema 'inner'.*copy its tables"):
        adopt("outer", f"{tmp_path}/files/", iceberg_path=f"{tmp_path}/elsewhere/")


@pytest.mark.parametrize(
    ("data_path", "expected"),
    [
        pytest.param("/data/", "/iceberg/", id="right below the root"),
        pytest.param("file:///data/", "file:///iceberg/", id="a URI right below the root"),
        pytest.param("s3a://bucket/a/b", "s3a://bucket/a/b-iceberg/", id="no slash"),
    ],
)
def test_a_folder_at_the_top_has_one_beside_it(data_path: str, expected: str) -> None:
    """Only a bucket has no other beside it that we could choose."""
    assert get_default_iceberg_path(data_path) == expected


@pytest.mark.whole
def test_a_lake_given_back_and_taken_again_is_served_right(lake: FreshLake, adopt: Adopt, tmp_path: Path) -> None:
    """Numbers start again, and no object of before is taken for one of now."""
    adopt("again", f"s3://lake/{lake.name}/theirs/")
    settings = make_settings(lake, metadata_schema="again")
    with serve(settings) as server:
        before = server.get("namespaces/main/tables/t").json
    abandon_lake(to_settings(lake, "again"))
    with replace(lake, metadata_schema="again").duckdb() as conn:
        conn.execute("INSERT INTO t VALUES (2000)")
    prepare(lake, tmp_path, "again")
    with serve(settings) as server:
        after = server.get("namespaces/main/tables/t").json
    assert before["metadata-location"] != after["metadata-location"]
    assert after["metadata-location"].endswith("/metadata/v1.metadata.json")
    assert after["metadata"]["current-snapshot-id"] > before["metadata"]["current-snapshot-id"]


def test_check_tells_of_names_and_times_that_iceberg_cannot_say(lake: FreshLake, tmp_path: Path) -> None:
    """Two columns of one full name, and 24:00."""
    with lake.duckdb() as conn:
        conn.execute('CREATE TABLE twins ("a.b" INTEGER, a STRUCT(b INTEGER))')
        conn.execute("CREATE TABLE late AS SELECT TIME '24:00:00' AS moment FROM range(100)")
        conn.execute("CREATE TABLE fine AS SELECT TIME '23:59:59' AS moment FROM range(100)")
    found = {
        (finding.subject, finding.severity)
        for finding in list_findings(to_settings(lake, lake.metadata_schema), open_home(tmp_path / "home"))
    }
    # Spark reads no TIME at all
    assert {subject.removeprefix("main.") for subject, _ in found} == {"twins", "late", "Spark"}
    assert {severity for _, severity in found} == {"warning"}


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        pytest.param((), None, id="prepared"),
        pytest.param(("TABLE iceberg_root",), "prepared by an older version", id="by an older version"),
        pytest.param(("TRIGGER iceberg_note_version ON ducklake_metadata",), "prepared by an older version", id="without a trigger"),
        pytest.param(("TABLE iceberg_root", "TABLE iceberg_setting"), "may not create tables and triggers", id="not prepared"),
    ],
)
def test_a_role_that_may_make_nothing_needs_a_lake_that_is_prepared(
    lake: FreshLake, stack: SharedStack, tmp_path: Path, lost: tuple[str, ...], said: str | None
) -> None:
    """By this version: an older one is refused, with what to do."""
    role, schema = sql.Identifier(f"plain_{lake.name}"), sql.Identifier(lake.metadata_schema)
    plain = SecretStr(make_conninfo(lake.dsn, user=f"plain_{lake.name}", password="plain"))
    owner = lake.psycopg()
    with psycopg.connect(stack.admin_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(role))
        try:
            for lacked in lost:
                owner.execute(f"DROP {lacked}".encode())
            owner.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, role))
            owner.execute(sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {} TO {}").format(schema, role))
            settings = to_settings(lake, lake.metadata_schema, iceberg_path=lake.iceberg_path).model_copy(update={"postgres_dsn": plain})
            if said is None:
                assert prepare_lake(settings, tmp_path, lambda line: None).iceberg_path == lake.iceberg_path
            else:
                with pytest.raises(Forbidden, match=said):
                    prepare_lake(settings, tmp_path, lambda line: None)
        finally:
            owner.execute(sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM {}").format(schema, role))
            owner.execute(sql.SQL("REVOKE ALL ON SCHEMA {} FROM {}").format(schema, role))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.mark.parametrize("wrong", [pytest.param({"data_path": "s3://no-such-bucket/data/"}, id="bucket"), pytest.param({}, id="secret")])
def test_a_store_that_takes_nothing_stops_it_before_a_lake_is_made(lake: FreshLake, tmp_path: Path, wrong: dict[str, str]) -> None:
    """One object is written, read and deleted under ICEBERG_PATH; the message names the lake and what to look at."""
    settings = to_settings(lake, "fresh", **{"data_path": f"s3://lake/{lake.name}/fresh/", **wrong})
    if not wrong:
        settings = settings.model_copy(update={"s3_secret_access_key": SecretStr("wrong")})
    with pytest.raises(ServiceUnavailable, match=r"Lake 'lake-5': .* let us write .* that the bucket exists and that the keys are right"):
        prepare_lake(settings, tmp_path, lambda line: None)
    with lake.psycopg() as conn:
        assert conn.execute("SELECT to_regclass('fresh.ducklake_metadata')").fetchone() == (None,)


def test_a_data_path_without_a_bucket_stops_it_too(lake: FreshLake, tmp_path: Path) -> None:
    """ICEBERG_PATH alone would not show it: DuckDB's first file does. A lake that is there is looked at again at every start."""
    settings = to_settings(lake, "fresh", data_path="s3://no-such-bucket/data/", iceberg_path=f"s3://lake/{lake.name}/beside/")
    with pytest.raises(ServiceUnavailable, match=r"Lake 'lake-5': .* let us list .*that the bucket exists"):
        prepare_lake(settings, tmp_path, lambda line: None)
    with lake.psycopg() as conn:
        assert conn.execute("SELECT to_regclass('fresh.ducklake_metadata')").fetchone() == (None,)
        conn.execute("UPDATE ducklake_metadata SET value = 's3://no-such-bucket/data/' WHERE key = 'data_path'")
    there = to_settings(lake, lake.metadata_schema, iceberg_path=lake.iceberg_path)
    with pytest.raises(ServiceUnavailable, match=r"let us list .*that the bucket exists"):
        prepare_lake(there, tmp_path, lambda line: None)


def test_a_lake_that_is_there_is_proven_too_and_nothing_stays(lake: FreshLake, tmp_path: Path) -> None:
    """The object that proves the store is deleted again."""
    settings = to_settings(lake, lake.metadata_schema)
    ready = prepare_lake(settings, tmp_path, lambda line: None)
    keys = lake.store
    objects = open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key))
    assert list(objects.list_under(ready.iceberg_path or "")) == []
    with pytest.raises(ServiceUnavailable, match=r"that the keys are right"):
        prepare_lake(settings.model_copy(update={"s3_secret_access_key": SecretStr("wrong")}), tmp_path, lambda line: None)
