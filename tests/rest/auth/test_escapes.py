"""The escape matrix: a vended key opens its own table, and nothing beside it, on the real store."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from duckicelake.backends.buckets import ROLE_ARN
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.vended import Vended, is_refused, load_with_keys, open_root, split
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack

BUCKET = "lake"
OWN = "own"


@dataclass(frozen=True, slots=True)
class Field:
    """Keys of the table a.t1 to read and to write, an object of it, and objects of others, by what is tried."""

    reader: Vended
    writer: Vended
    root: Any
    own: str
    own_folder: str
    location: str
    others: dict[str, str]


def put(root: Any, key: str) -> str:
    """Place an object as root."""
    root.put_object(Bucket=BUCKET, Key=key, Body=b"secret")
    return key


@pytest.fixture(scope="module")
def field(each_stack: SharedStack) -> Generator[Field]:
    """A lake with tables beside, above and below in name, and objects of nobody around them, on each kind of store."""
    with make_lake(each_stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        yield lay_out(guarded)


def lay_out(guarded: Guarded) -> Field:
    """Make the tables and place the objects."""
    conn, root, name = guarded.lake.duckdb(), open_root(guarded), guarded.lake.name
    conn.execute("CREATE SCHEMA ab")
    for table in ("a.t1", "a.t10", "b.t1", "ab.t1", "a.gone"):
        conn.execute(f"CREATE TABLE {table} AS SELECT range AS i FROM range(100000)")
    guarded.get("admin", "namespaces/a/tables/t10")
    reader, writer = (load_with_keys(guarded, who, "namespaces/a/tables/t1") for who in ("reader", "writer"))
    conn.execute("DROP TABLE a.gone")
    data, location = f"{name}/data", split(reader.metadata["location"])[1]
    files = {folder: list_keys(root, f"{data}/{folder}/")[0] for folder in ("a/t1", "a/t10", "b/t1", "ab/t1", "a/gone")}
    tail = files["a/t1"].rpartition("/")[2]
    others = {
        "sibling": files["a/t10"],
        "other-namespace": files["b/t1"],
        "longer-namespace": files["ab/t1"],
        "dropped": files["a/gone"],
        "parent": put(root, f"{data}/a/stray.parquet"),
        "root": put(root, f"{name}/stray.parquet"),
        "case-of-parent": put(root, f"{data}/a/T10/x.parquet"),
        "longer-name": put(root, f"{data}/a/t1x/{tail}"),
        "shorter-location": put(root, f"{location[:-1]}/x"),
        "longer-location": put(root, f"{location}0/x"),
        "metadata-of-another": list_keys(root, f"{name}/iceberg/a/t10-")[0],
    }
    return Field(reader, writer, root, files["a/t1"], f"{data}/a/t1", location, others)


def list_keys(root: Any, prefix: str) -> list[str]:
    """Objects under a prefix, as root sees them."""
    return [found["Key"] for found in root.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]]


PLACES = [
    *("sibling", "other-namespace", "longer-namespace", "dropped", "parent", "root", "case-of-parent", "longer-name"),
    *("shorter-location", "longer-location", "metadata-of-another"),
]


def test_own_objects_are_open(field: Field) -> None:
    """The positive control: whoever reads may read and list, whoever writes may write, copy and delete at the location."""
    for keys in (field.reader.s3, field.writer.s3):
        assert keys.get_object(Bucket=BUCKET, Key=field.own)["Body"].read(4) == b"PAR1"
        assert keys.head_object(Bucket=BUCKET, Key=field.own)["ContentLength"] > 0
        assert keys.list_objects_v2(Bucket=BUCKET, Prefix=f"{field.own_folder}/")["KeyCount"] == 1
        assert keys.list_objects_v2(Bucket=BUCKET, Prefix=f"{field.location}/metadata/")["KeyCount"] > 0
    key, s3 = f"{field.location}/data/new.parquet", field.writer.s3
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"x")
    s3.copy_object(Bucket=BUCKET, Key=f"{key}.copy", CopySource={"Bucket": BUCKET, "Key": field.own})
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key=f"{key}.parts")["UploadId"]
    part = s3.upload_part(Bucket=BUCKET, Key=f"{key}.parts", UploadId=upload, PartNumber=1, Body=b"y")
    done = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket=BUCKET, Key=f"{key}.parts", UploadId=upload, MultipartUpload=done)
    dropped = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key}, {"Key": f"{key}.copy"}]})
    assert "Errors" not in dropped
    s3.delete_object(Bucket=BUCKET, Key=f"{key}.parts")
    assert not [key for key in list_keys(field.root, f"{field.location}/") if "new.parquet" in key]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("who", ["reader", "writer"])
def test_nothing_of_others_is_read_or_changed(field: Field, who: str, place: str) -> None:
    """Each way of reading, listing, writing, copying and deleting, for each kind of place: refused, and the object is as before."""
    s3, key = (field.reader if who == "reader" else field.writer).s3, field.others[place]
    before = field.root.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    folder = key.rpartition("/")[0]
    target = f"{field.location}/data/stolen"
    assert is_refused(s3.get_object, Bucket=BUCKET, Key=key)
    assert is_refused(s3.head_object, Bucket=BUCKET, Key=key)
    assert is_refused(s3.list_objects_v2, Bucket=BUCKET, Prefix=f"{folder}/")
    assert is_refused(s3.list_objects, Bucket=BUCKET, Prefix=key)
    assert is_refused(s3.put_object, Bucket=BUCKET, Key=key, Body=b"x")
    assert is_refused(s3.put_object, Bucket=BUCKET, Key=f"{folder}/new", Body=b"x")
    assert is_refused(s3.delete_object, Bucket=BUCKET, Key=key)
    assert is_refused(s3.copy_object, Bucket=BUCKET, Key=target, CopySource={"Bucket": BUCKET, "Key": key})
    assert is_refused(s3.copy_object, Bucket=BUCKET, Key=key, CopySource={"Bucket": BUCKET, "Key": field.own})
    assert is_refused(s3.create_multipart_upload, Bucket=BUCKET, Key=f"{folder}/parts")
    answer: dict[str, Any] = {}
    if not is_refused(lambda: answer.update(s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key}]}))):
        assert [error["Code"] for error in answer["Errors"]] == ["AccessDenied"]
    assert field.root.get_object(Bucket=BUCKET, Key=key)["Body"].read() == before
    assert not [found for found in list_keys(field.root, f"{field.location}/") if "stolen" in found]


@pytest.mark.parametrize("step", ["..", "%2e%2e", ".", "%2F..", "..%2F", "%252e%252e", "*", "?", "\\..", "..\\"])
@pytest.mark.parametrize("base", ["own_folder", "location"])
def test_steps_and_wildcards_lead_nowhere(field: Field, base: str, step: str) -> None:
    """A key that starts like the own folder and means another place does not open that."""
    tail = field.others["sibling"].rpartition("/data/a/")[2]
    up = "/".join([step] * (1 if base == "own_folder" else 3)) + ("" if base == "own_folder" else "/data/a")
    key = f"{getattr(field, base)}/{up}/{tail}"
    for s3 in (field.reader.s3, field.writer.s3):
        answer: dict[str, Any] = {}
        if not is_refused(lambda s3=s3, answer=answer: answer.update(s3.get_object(Bucket=BUCKET, Key=key))):
            assert "Body" not in answer
        is_refused(s3.put_object, Bucket=BUCKET, Key=key, Body=b"overwritten")
        is_refused(s3.delete_object, Bucket=BUCKET, Key=key)
    assert field.root.get_object(Bucket=BUCKET, Key=field.others["sibling"])["Body"].read(4) == b"PAR1"


@pytest.mark.parametrize("prefix", ["", "/", "t1", "{own}", "{own}0", "{parent}", "{parent}/t", "*", "{own}/../"])
def test_lists_by_other_prefixes_are_refused(field: Field, prefix: str) -> None:
    """Nor without a prefix, nor with one that is the beginning of the own."""
    told = prefix.format(own=field.own_folder, parent=field.own_folder.rpartition("/")[0])
    for s3 in (field.reader.s3, field.writer.s3):
        found: dict[str, Any] = {}
        is_refused(lambda s3=s3, found=found: found.update(s3.list_objects_v2(Bucket=BUCKET, Prefix=told)))
        assert not found.get("KeyCount")


def test_a_reader_changes_nothing_of_its_own_table(field: Field) -> None:
    """Reading is reading."""
    s3, key = field.reader.s3, f"{field.location}/data/x"
    for place in (key, field.own, f"{field.location}/metadata/v1.metadata.json"):
        assert is_refused(s3.put_object, Bucket=BUCKET, Key=place, Body=b"x")
        assert is_refused(s3.delete_object, Bucket=BUCKET, Key=place)
        assert is_refused(s3.create_multipart_upload, Bucket=BUCKET, Key=place)
        assert is_refused(s3.copy_object, Bucket=BUCKET, Key=place, CopySource={"Bucket": BUCKET, "Key": field.own})


def test_a_writer_does_not_touch_duckdbs_files(field: Field) -> None:
    """They are DuckLake's to remove; a writer's are at the location."""
    s3 = field.writer.s3
    assert is_refused(s3.delete_object, Bucket=BUCKET, Key=field.own)
    assert is_refused(s3.put_object, Bucket=BUCKET, Key=field.own, Body=b"x")
    assert is_refused(s3.put_object, Bucket=BUCKET, Key=f"{field.own_folder}/new.parquet", Body=b"x")


@pytest.mark.parametrize("who", ["reader", "writer"])
def test_keys_are_for_objects_alone(field: Field, who: str) -> None:
    """Nothing of the bucket, its policies, its versions or of other sessions."""
    s3 = (field.reader if who == "reader" else field.writer).s3
    assert is_refused(s3.delete_bucket, Bucket=BUCKET)
    assert is_refused(s3.create_bucket, Bucket="mine")
    assert is_refused(s3.put_bucket_policy, Bucket=BUCKET, Policy="{}")
    assert is_refused(s3.put_object_tagging, Bucket=BUCKET, Key=field.own, Tagging={"TagSet": []})
    assert is_refused(s3.put_object_acl, Bucket=BUCKET, Key=field.own, ACL="public-read")
    assert is_refused(s3.list_multipart_uploads, Bucket=BUCKET)
    assert field.root.list_buckets()["Buckets"]
