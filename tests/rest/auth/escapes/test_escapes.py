"""The escape matrix: a vended key opens its own table, and nothing beside it, on the real store."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.escapes.ground import BUCKET, PLACES, lay_out, list_keys, make_tables
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.auth.vended import Vended, is_refused, load_with_keys, open_root, open_vended, post_form, resign, send, split
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack

EVERYTHING = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'


@dataclass(frozen=True, slots=True)
class Field:
    """Keys of the table a.t1 to read and to write, a DuckDB user's who may read it alone, an object of it, and objects of others."""

    reader: Vended
    writer: Vended
    duckdb: Any
    root: Any
    own: str
    own_folder: str
    location: str
    others: dict[str, str]

    def open(self, who: str) -> Any:
        """A client of the store with somebody's keys."""
        return {"reader": self.reader.s3, "writer": self.writer.s3, "duckdb": self.duckdb}[who]


@pytest.fixture(scope="module")
def field(each_stack: SharedStack) -> Generator[Field]:
    """A lake with tables beside, above and below in name, and objects of nobody around them, on each kind of store."""
    with make_lake(each_stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        yield open_field(guarded)


def open_field(guarded: Guarded) -> Field:
    """Make the tables, give out the keys, and place the objects."""
    make_tables(guarded)
    reader, writer = (load_with_keys(guarded, who, "namespaces/a/tables/t1") for who in ("reader", "writer"))
    location = split(reader.metadata["location"])[1]
    laid = lay_out(guarded, location, "T10")
    return Field(reader, writer, open_as_duckdb(guarded), open_root(guarded), laid.own, laid.own_folder, location, laid.others)


def open_as_duckdb(guarded: Guarded) -> Any:
    """A client with what a DuckDB user gets who may read a.t1 and nothing else."""
    managed = Managed(guarded)
    managed.add("one")
    managed.give("read", "table:a.t1", "one")
    [given] = managed.ask("one", "GET", "ducklake-credentials").json["storage-credentials"]
    return open_vended({**given["config"], "s3.endpoint": guarded.lake.store.endpoint})


WHO = ["reader", "writer", "duckdb"]


@pytest.mark.whole
@pytest.mark.core
def test_own_objects_are_open(field: Field) -> None:
    """The positive control: whoever reads may read and list, whoever writes may write, copy and delete at the location."""
    for keys in (field.reader.s3, field.writer.s3, field.duckdb):
        assert keys.get_object(Bucket=BUCKET, Key=field.own)["Body"].read(4) == b"PAR1"
        assert keys.head_object(Bucket=BUCKET, Key=field.own)["ContentLength"] > 0
    for keys in (field.reader.s3, field.writer.s3):
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


@pytest.mark.core
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("who", WHO)
def test_nothing_of_others_is_read_or_changed(field: Field, who: str, place: str) -> None:
    """Each way of reading, listing, writing, copying and deleting, for each kind of place: refused, and the object is as before."""
    s3, key = field.open(who), field.others[place]
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
    assert is_refused(s3.get_object, Bucket=BUCKET, Key=key, VersionId="null")
    assert is_refused(s3.delete_object, Bucket=BUCKET, Key=key, VersionId="null")
    assert is_refused(s3.copy_object, Bucket=BUCKET, Key=target, CopySource={"Bucket": BUCKET, "Key": key, "VersionId": "null"})
    assert is_refused(s3.list_object_versions, Bucket=BUCKET, Prefix=key)
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
    for s3 in map(field.open, WHO):
        answer: dict[str, Any] = {}
        if not is_refused(lambda s3=s3, answer=answer: answer.update(s3.get_object(Bucket=BUCKET, Key=key))):
            assert "Body" not in answer
        is_refused(s3.put_object, Bucket=BUCKET, Key=key, Body=b"overwritten")
        is_refused(s3.delete_object, Bucket=BUCKET, Key=key)
    assert field.root.get_object(Bucket=BUCKET, Key=field.others["sibling"])["Body"].read(4) == b"PAR1"


@pytest.mark.core
@pytest.mark.parametrize("prefix", ["", "/", "t1", "{own}", "{own}0", "{parent}", "{parent}/t", "*", "{own}/../"])
def test_lists_by_other_prefixes_are_refused(field: Field, prefix: str) -> None:
    """Nor without a prefix, nor with one that is the beginning of the own."""
    told = prefix.format(own=field.own_folder, parent=field.own_folder.rpartition("/")[0])
    for s3 in map(field.open, WHO):
        found: dict[str, Any] = {}
        is_refused(lambda s3=s3, found=found: found.update(s3.list_objects_v2(Bucket=BUCKET, Prefix=told)))
        assert not found.get("KeyCount")


@pytest.mark.core
@pytest.mark.parametrize("who", ["reader", "duckdb"])
def test_a_reader_changes_nothing_of_its_own_table(field: Field, who: str) -> None:
    """Reading is reading."""
    s3, key = field.open(who), f"{field.location}/data/x"
    for place in (key, field.own, f"{field.location}/metadata/v1.metadata.json"):
        assert is_refused(s3.put_object, Bucket=BUCKET, Key=place, Body=b"x")
        assert is_refused(s3.delete_object, Bucket=BUCKET, Key=place)
        assert is_refused(s3.create_multipart_upload, Bucket=BUCKET, Key=place)
        assert is_refused(s3.copy_object, Bucket=BUCKET, Key=place, CopySource={"Bucket": BUCKET, "Key": field.own})


@pytest.mark.core
def test_a_writer_does_not_touch_duckdbs_files(field: Field) -> None:
    """They are DuckLake's to remove; a writer's are at the location."""
    s3 = field.writer.s3
    assert is_refused(s3.delete_object, Bucket=BUCKET, Key=field.own)
    assert is_refused(s3.put_object, Bucket=BUCKET, Key=field.own, Body=b"x")
    assert is_refused(s3.put_object, Bucket=BUCKET, Key=f"{field.own_folder}/new.parquet", Body=b"x")


@pytest.mark.core
@pytest.mark.parametrize("who", WHO)
def test_keys_are_for_objects_alone(field: Field, who: str) -> None:
    """Nothing of the bucket, its policies, its versions or of other sessions."""
    s3 = field.open(who)
    assert is_refused(s3.delete_bucket, Bucket=BUCKET)
    assert is_refused(s3.create_bucket, Bucket="mine")
    assert is_refused(s3.put_bucket_policy, Bucket=BUCKET, Policy="{}")
    assert is_refused(s3.put_object_tagging, Bucket=BUCKET, Key=field.own, Tagging={"TagSet": []})
    assert is_refused(s3.put_object_acl, Bucket=BUCKET, Key=field.own, ACL="public-read")
    assert is_refused(s3.list_multipart_uploads, Bucket=BUCKET)
    assert is_refused(s3.put_bucket_versioning, Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    assert field.root.list_buckets()["Buckets"]


@pytest.mark.core
@pytest.mark.parametrize("place", PLACES)
def test_no_part_of_others_is_copied(field: Field, place: str) -> None:
    """Not as a part of an upload either; from the own table it is."""
    s3, name = field.writer.s3, {"Bucket": BUCKET, "Key": f"{field.location}/data/parts"}
    part = {**name, "UploadId": s3.create_multipart_upload(**name)["UploadId"], "PartNumber": 1}
    assert s3.upload_part_copy(**part, CopySource={"Bucket": BUCKET, "Key": field.own})["CopyPartResult"]["ETag"]
    assert is_refused(s3.upload_part_copy, **part, CopySource={"Bucket": BUCKET, "Key": field.others[place]})
    s3.abort_multipart_upload(**name, UploadId=part["UploadId"])


@pytest.mark.whole
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("signature", ["s3v4", "s3"])
def test_links_and_older_signatures_open_no_more(field: Field, who: str, place: str, signature: str) -> None:
    """A URL that is signed with the key, a form, and signatures of the second version: each as the key itself, or not at all."""
    s3, key = resign(field.open(who), signature), field.others[place]
    before = field.root.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    name = {"Bucket": BUCKET, "Key": key}
    for action, method in (("get_object", "GET"), ("put_object", "PUT"), ("delete_object", "DELETE")):
        assert send(s3.generate_presigned_url(action, name), method)[0] == 403
    form = s3.generate_presigned_post(**name)
    assert post_form(form["url"], form["fields"])[0] in (400, 403)
    assert is_refused(s3.get_object, **name)
    assert is_refused(s3.put_object, **name, Body=b"x")
    assert field.root.get_object(**name)["Body"].read() == before


def test_links_of_the_own_table_work(field: Field) -> None:
    """So that what is refused is refused for its place."""
    for who in WHO:
        url = field.open(who).generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": field.own})
        status, body = send(url, "GET")
        assert (status, body[:4]) == (200, b"PAR1")


@pytest.mark.core
@pytest.mark.parametrize("who", WHO)
def test_keys_give_no_other_keys(field: Field, who: str) -> None:
    """Neither the token service nor the store's own management takes them for somebody who may ask for more."""
    keys = field.open(who)._request_signer._credentials
    sts, iam = (
        boto3.client(
            service,
            endpoint_url=field.open(who).meta.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=keys.access_key,
            aws_secret_access_key=keys.secret_key,
            aws_session_token=keys.token,
            config=Config(retries={"total_max_attempts": 1}),
        )
        for service in ("sts", "iam")
    )
    role = {"RoleArn": ROLE_ARN, "RoleSessionName": "more"}
    tried: dict[str, Any] = {
        "AssumeRole": lambda: sts.assume_role(**role),
        "AssumeRole with a policy": lambda: sts.assume_role(**role, Policy=EVERYTHING),
        "AssumeRoleWithWebIdentity": lambda: sts.assume_role_with_web_identity(**role, WebIdentityToken=keys.token),
        "GetSessionToken": sts.get_session_token,
        "GetFederationToken": lambda: sts.get_federation_token(Name="more", Policy=EVERYTHING),
        "CreateUser": lambda: iam.create_user(UserName="more"),
        "CreateAccessKey": lambda: iam.create_access_key(UserName="root"),
        "ListUsers": iam.list_users,
        "PutUserPolicy": lambda: iam.put_user_policy(UserName="root", PolicyName="more", PolicyDocument=EVERYTHING),
        "ListRoles": iam.list_roles,
    }
    for name, call in tried.items():
        with pytest.raises(ClientError) as refused:
            call()
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 403, 405, 501), (name, refused.value)
