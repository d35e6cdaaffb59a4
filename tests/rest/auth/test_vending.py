"""Keys with a table: who gets which, for what, until when."""

import time
from collections.abc import Generator
from typing import Any

import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.test_permissions import TABLE
from tests.rest.auth.vended import DELEGATION, is_refused, load_with_keys, open_root, open_vended, split
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack
from tests.support.sts import Asked, Given, assume_until, run_sts
from tests.support.waiting import wait_for

PATH = "namespaces/a/tables/t"
KEYS = {"s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.session-token-expires-at-ms"}
REFRESHING = {"client.refresh-credentials-enabled", "client.refresh-credentials-endpoint"}
PLACES = {"s3.region", "client.region", "s3.endpoint", "s3.path-style-access"}


@pytest.fixture(scope="module")
def vending(each_stack: SharedStack) -> Generator[Guarded]:
    """A guarded server that vends keys of each kind of store, for tests that leave its tables as they are."""
    with make_lake(each_stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as running:
        lake.duckdb().execute("CREATE TABLE a.big AS SELECT range AS i FROM range(100000)")
        yield running


def test_keys_come_in_every_clients_words(vending: Guarded) -> None:
    """For Java, PyIceberg, DuckDB and Trino side by side, and with where to get newer ones."""
    vended = load_with_keys(vending, "reader", "namespaces/a/tables/big")
    assert set(vended.config) == KEYS | REFRESHING | PLACES
    assert vended.config["client.refresh-credentials-endpoint"] == "v1/lake/namespaces/a/tables/big/credentials"
    assert vended.prefixes == (vended.metadata["location"] + "/", f"{vending.lake.data_path}a/big/")


def test_nobody_gets_the_roots_keys(vending: Guarded) -> None:
    """In no answer, whatever is asked for."""
    store = vending.lake.store
    for path in (
        "/v1/config",
        PATH,
        f"{PATH}/credentials",
        "namespaces",
        "/metrics",
        "/readyz",
        "/openapi.json",
        "namespaces/a/tables/none",
    ):
        body = vending.get("admin", path, X_Iceberg_Access_Delegation="vended-credentials").body.decode()
        assert store.access_key_id not in body
        assert store.secret_access_key not in body


@pytest.mark.parametrize("header", [None, "", "remote-signing", "none"])
def test_keys_come_only_when_asked_for(vending: Guarded, header: str | None) -> None:
    """A load without the header, or for another kind of delegation, has none."""
    headers = {} if header is None else {"X_Iceberg_Access_Delegation": header}
    answer = vending.get("reader", PATH, **headers).json
    assert "storage-credentials" not in answer
    assert not KEYS & set(answer["config"])


def test_among_several_kinds_keys_are_chosen(vending: Guarded) -> None:
    """The header is a list."""
    answer = vending.get("reader", PATH, X_Iceberg_Access_Delegation="remote-signing, vended-credentials").json
    assert set(answer["config"]) >= KEYS


@pytest.mark.whole
def test_who_takes_signatures_too_gets_them_where_no_key_opens_all_files(each_stack: SharedStack, stack: SharedStack) -> None:
    """Files that lie in a folder beside another table's are named one by one, and a key has room for about fifteen of them.

    MinIO gets no signatures: nobody can have the files there.
    """
    with make_lake(each_stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        for statement in (
            "CREATE TABLE a.many (i BIGINT)",
            "ALTER TABLE a.many SET PARTITIONED BY (i)",
            "INSERT INTO a.many FROM range(40)",
            "ALTER TABLE a.many RENAME TO moved",
            "CREATE TABLE a.many AS SELECT range AS i FROM range(100)",
        ):
            lake.duckdb().execute(statement)
        path = "namespaces/a/tables/moved"
        refused = guarded.get("reader", path, X_Iceberg_Access_Delegation="vended-credentials")
        assert refused.error == (406, "UnsupportedOperationException")
        for _ in range(2):
            told = guarded.get("reader", path, X_Iceberg_Access_Delegation="vended-credentials, remote-signing")
            if each_stack is not stack:
                assert told.error == refused.error
                continue
            assert told.json["config"]["s3.remote-signing-enabled"] == "true"
            assert "storage-credentials" not in told.json
            assert not KEYS & set(told.json["config"])
        assert guarded.get("reader", path, X_Iceberg_Access_Delegation="vended-credentials").error == refused.error


def test_the_ready_answer_is_kept_by_rights(vending: Guarded) -> None:
    """Each right has keys of its own, the same ones while they are fresh; nobody gets another's."""
    paths = ["reader", "writer", "reader", "writer", "owner"]
    told = [load_with_keys(vending, who, PATH).config["s3.access-key-id"] for who in paths]
    assert told[0] == told[2] != told[1] == told[3] == told[4]


def test_clickhouse_gets_keys_without_an_endpoint(vending: Guarded) -> None:
    """It would append the table's path to the endpoint twice; the cached responses of other clients keep it."""
    headers = {"X_Iceberg_Access_Delegation": "vended-credentials"}
    for agent, expected in (("ClickHouse/26.9.2.1", PLACES - {"s3.endpoint"}), ("PyIceberg/0.12.0", PLACES)) * 2:
        answer = vending.get("reader", PATH, User_Agent=agent, **headers).json
        for config in (answer["config"], *(entry["config"] for entry in answer["storage-credentials"])):
            assert set(config) == KEYS | REFRESHING | expected


def test_an_etag_covers_the_keys(vending: Guarded) -> None:
    """304 while the same keys would come; answers with and without keys, and for other rights, have other tags."""
    headers = {"X_Iceberg_Access_Delegation": "vended-credentials"}
    plain = vending.get("reader", PATH).headers["etag"]
    mine = vending.get("reader", PATH, **headers).headers["etag"]
    others = vending.get("writer", PATH, **headers).headers["etag"]
    assert len({plain, mine, others}) == 3
    assert vending.get("reader", PATH, If_None_Match=mine, **headers).status == 304
    assert vending.get("reader", PATH, If_None_Match=plain, **headers).status == 200
    assert vending.get("writer", PATH, If_None_Match=mine, **headers).status == 200


def test_newer_keys_are_one(vending: Guarded) -> None:
    """Java and Trino insist on it; they are good for the table."""
    answer = vending.get("reader", "namespaces/a/tables/big/credentials")
    assert answer.headers["cache-control"] == "no-store"
    [told] = answer.json["storage-credentials"]
    assert told["prefix"] == "s3://lake/"
    folder = split(vending.lake.data_path)[1] + "a/big/"
    assert open_vended(told["config"]).list_objects_v2(Bucket="lake", Prefix=folder)["KeyCount"] == 1


def test_the_endpoint_is_told_where_it_works(vending: Guarded, guarded: Guarded) -> None:
    """DuckDB asks it as soon as it is advertised."""
    endpoint = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"
    assert endpoint in vending.get("reader", "/v1/config").json["endpoints"]
    assert endpoint not in guarded.get("reader", "/v1/config").json["endpoints"]
    assert "storage-credentials" not in guarded.get("reader", PATH, X_Iceberg_Access_Delegation="vended-credentials").json


def make(guarded: Guarded, principal: str, **more: Any) -> dict[str, Any]:
    """Make a table, with keys."""
    answer = guarded.ask(principal, "POST", "namespaces/a/tables", {**TABLE, **more}, X_Iceberg_Access_Delegation="vended-credentials")
    assert answer.status == 200, answer.body
    return answer.json


@pytest.mark.parametrize("staged", [False, True])
def test_a_new_table_comes_with_keys(vending: Guarded, staged: bool) -> None:
    """Made or only staged, its location is open to write, and nothing else."""
    told = make(vending, "writer", name=f"new{staged}", **({"stage-create": True} if staged else {}))
    s3, (bucket, key) = open_vended(told["config"]), split(told["metadata"]["location"])
    s3.put_object(Bucket=bucket, Key=f"{key}/data/x", Body=b"x")
    assert is_refused(s3.put_object, Bucket=bucket, Key=f"{key.rpartition('/')[0]}/x", Body=b"x")


def test_who_may_not_read_writes_blindly(vending: Guarded) -> None:
    """Keys for writing alone."""
    told = make(vending, "blind", name="blindly")
    s3, (bucket, key) = open_vended(told["config"]), split(told["metadata"]["location"])
    s3.put_object(Bucket=bucket, Key=f"{key}/data/x", Body=b"x")
    assert is_refused(s3.get_object, Bucket=bucket, Key=f"{key}/data/x")
    assert is_refused(s3.list_objects_v2, Bucket=bucket, Prefix=f"{key}/")


def test_a_shared_folder_is_opened_file_by_file(each_lake: FreshLake) -> None:
    """After a rename DuckDB puts another table into the same folder: each key opens its own table's files alone."""
    lake = each_lake
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        conn = lake.duckdb()
        for first, second in (("one", "ONE"), ("two", "two")):
            conn.execute(f"CREATE TABLE a.{first} AS SELECT range AS i FROM range(100000); ALTER TABLE a.{first} RENAME TO old_{first}")
            conn.execute(f"CREATE TABLE a.{second} AS SELECT range AS i FROM range(100000)")
        for pair in (("old_one", "ONE"), ("old_two", "two")):
            for own, other in (pair, pair[::-1]):
                vended = load_with_keys(guarded, "reader", f"namespaces/a/tables/{own}")
                assert vended.s3.get_object(Bucket="lake", Key=find_key(guarded, own))["Body"].read(4) == b"PAR1"
                assert is_refused(vended.s3.get_object, Bucket="lake", Key=find_key(guarded, other))


SELECT_FILE = """
SELECT f.path FROM ducklake_data_file f JOIN ducklake_table t USING (table_id) WHERE t.table_name = %s AND t.end_snapshot IS NULL
"""


def find_key(guarded: Guarded, table: str) -> str:
    """The key of a table's only data file, wherever under DATA_PATH it lies."""
    row = guarded.lake.psycopg().execute(SELECT_FILE, (table,)).fetchone()
    assert row is not None
    listed = open_root(guarded).list_objects_v2(Bucket="lake", Prefix=split(guarded.lake.data_path)[1])["Contents"]
    [key] = [found["Key"] for found in listed if found["Key"].endswith(row[0])]
    return key


def test_too_many_places_are_refused(lake: FreshLake) -> None:
    """A shared folder with more files than a policy holds: 406 with what to do, never a wider key; loads without keys go on."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        conn = lake.duckdb()
        conn.execute("CREATE TABLE a.many AS SELECT range AS i FROM range(1000); DROP TABLE a.many; CREATE TABLE a.many (i BIGINT)")
        conn.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
        for number in range(30):
            conn.execute(f"INSERT INTO a.many VALUES ({number})")
        answer = guarded.get("reader", "namespaces/a/tables/many", X_Iceberg_Access_Delegation="vended-credentials")
        assert answer.error == (406, "UnsupportedOperationException")
        assert guarded.get("reader", "namespaces/a/tables/many").status == 200


def test_without_a_token_service_loads_without_keys_go_on(lake: FreshLake) -> None:
    """503 names it and no key; a table that was just made is answered without keys, because it is there."""
    with guard(lake, sts_role_arn=ROLE_ARN, sts_endpoint="http://127.0.0.1:9") as guarded:
        answer = guarded.get("reader", PATH, **{name.replace("-", "_"): value for name, value in DELEGATION.items()})
        assert answer.error == (503, "SlowDownException")
        assert "127.0.0.1:9" in answer.json["error"]["message"]
        assert lake.store.access_key_id not in answer.body.decode()
        assert guarded.get("reader", PATH).status == 200
        assert guarded.get("reader", f"{PATH}/credentials").status == 503
        assert "storage-credentials" not in make(guarded, "writer", name="kept")
        assert guarded.get("writer", "namespaces/a/tables/kept").status == 200


def test_policies_name_the_partition_of_the_role(lake: FreshLake) -> None:
    """In China as AWS names it there, for loads and for DuckDB users; the token service gets nothing else."""
    asked: list[str] = []

    def give(told: Asked) -> Given:
        asked.append(told["Policy"])
        return "ASIAEXAMPLE", "its-secret", "its-token", "2999-01-01T00:00:00Z"

    with run_sts(give) as sts, guard(lake, sts_role_arn="arn:aws-cn:iam::123456789012:role/lake", sts_endpoint=sts) as guarded:
        assert guarded.get("reader", PATH, X_Iceberg_Access_Delegation="vended-credentials").status == 200
        assert guarded.get("reader", "ducklake-credentials").status == 200
    assert len(asked) == 2
    for policy in asked:
        assert policy.count("arn:aws-cn:s3:::lake") == policy.count("arn:") > 0


@pytest.mark.whole
def test_keys_end(stack: SharedStack, lake: FreshLake) -> None:
    """What was opened with a key is closed when its time is over; who asks then gets another, never a 304 for the old one."""
    ends_s = [int(time.time()) + 3, int(time.time()) + 600]
    with (
        run_sts(lambda asked: assume_until(stack, asked, ends_s.pop(0))) as sts,
        guard(lake, sts_role_arn=ROLE_ARN, sts_endpoint=sts) as guarded,
    ):
        first = load_with_keys(guarded, "reader", PATH)
        bucket, key = split(first.metadata["location"])

        def is_over() -> bool:
            return is_refused(first.s3.list_objects_v2, Bucket=bucket, Prefix=f"{key}/")

        wait_for(is_over, "the end of the key")
        assert time.time() >= int(first.config["s3.session-token-expires-at-ms"]) / 1000
        headers = {"If_None_Match": first.etag, "X_Iceberg_Access_Delegation": "vended-credentials"}
        assert guarded.get("reader", PATH, **headers).status == 200
        assert load_with_keys(guarded, "reader", PATH).s3.list_objects_v2(Bucket=bucket, Prefix=f"{key}/")["KeyCount"] > 0
