"""Buckets that keep versions: no key reads, copies, lists, removes or brings back an older one, by whatever id."""

import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import pytest
from botocore.exceptions import ClientError

from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.escapes.signed import SigningClient, sign_as
from tests.rest.auth.principals import guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.auth.vended import is_refused, load_with_keys, open_s3, open_vended, split
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack

TABLE = "namespaces/a/tables/t1"


@dataclass(frozen=True, slots=True)
class Versions:
    """A bucket with versions, keys of a.t1 in it by whose they are, and objects with the id of an older version: own and others'."""

    bucket: str
    root: Any
    keys: Mapping[str, Any]
    signing: SigningClient
    location: str
    own: tuple[str, str]
    others: Mapping[str, tuple[str, str]]

    def list_all(self) -> list[tuple[str, str, bool]]:
        """Every version of others' objects, as root sees them; whether it is the latest."""
        found = self.root.list_object_versions(Bucket=self.bucket)
        every = [*found["Versions"], *found["DeleteMarkers"]]
        mine = {key for key, _ in self.others.values()}
        return sorted((each["Key"], each["VersionId"], each["IsLatest"]) for each in every if each["Key"] in mine)


@pytest.fixture(scope="module")
def versions(each_stack: SharedStack) -> Generator[Versions]:
    """A lake in a bucket of its own on each kind of store."""
    bucket = f"versions-{secrets.token_hex(4)}"
    store = replace(each_stack.store, bucket=bucket)
    root = open_s3(store.endpoint, (store.access_key_id, store.secret_access_key, None))
    root.create_bucket(Bucket=bucket)
    root.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with make_lake(replace(each_stack, store=store)) as lake, guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        lake.duckdb().execute("CREATE TABLE a.t1 AS SELECT range AS i FROM range(100000); CREATE TABLE a.t10 AS FROM a.t1")
        reader, writer, managed = load_with_keys(guarded, "reader", TABLE), load_with_keys(guarded, "writer", TABLE), Managed(guarded)
        managed.add("one")
        managed.give("read", "table:a.t1", "one")
        [given] = managed.ask("one", "GET", "ducklake-credentials").json["storage-credentials"]
        duckdb = open_vended({**given["config"], "s3.endpoint": store.endpoint})
        location = split(reader.metadata["location"])[1]
        sibling = f"{lake.name}/data/a/t10"
        others = {name: lay(root, bucket, key, name) for name, key in (("changed", f"{sibling}/x"), ("removed", f"{location}0/x"))}
        keys = {"reader": reader.s3, "writer": writer.s3, "duckdb": duckdb}
        own = lay(root, bucket, f"{location}/data/x", "changed")
        yield Versions(bucket, root, keys, sign_as(guarded, "writer", TABLE), location, own, others)


def lay(root: Any, bucket: str, key: str, how: str) -> tuple[str, str]:
    """Place an object, and change or remove it; returns its key and the id of what it was first."""
    first = root.put_object(Bucket=bucket, Key=key, Body=b"first")["VersionId"]
    _ = root.put_object(Bucket=bucket, Key=key, Body=b"second") if how == "changed" else root.delete_object(Bucket=bucket, Key=key)
    return key, first


def list_reads(versions: Versions, s3: Any, key: str, version_id: str) -> dict[str, Callable[[], Any]]:
    """Ways of reading a version, and what is told of versions."""
    one = {"Bucket": versions.bucket, "Key": key, "VersionId": version_id}
    target = {"Bucket": versions.bucket, "Key": f"{versions.location}/data/stolen"}
    return {
        "GET": lambda: s3.get_object(**one),
        "HEAD": lambda: s3.head_object(**one),
        "copy": lambda: s3.copy_object(**target, CopySource=one),
        "versions": lambda: s3.list_object_versions(Bucket=versions.bucket, Prefix=key),
        "all versions": lambda: s3.list_object_versions(Bucket=versions.bucket),
        "tags": lambda: s3.get_object_tagging(**one),
    }


def list_changes(versions: Versions, s3: Any, key: str, version_id: str) -> dict[str, Callable[[], Any]]:
    """Ways of removing or changing one, or what the bucket keeps."""
    one = {"Bucket": versions.bucket, "Key": key, "VersionId": version_id}
    return {
        "DELETE": lambda: s3.delete_object(**one),
        "tags": lambda: s3.put_object_tagging(**one, Tagging={"TagSet": []}),
        "suspend": lambda: s3.put_bucket_versioning(Bucket=versions.bucket, VersioningConfiguration={"Status": "Suspended"}),
    }


def delete_several(versions: Versions, s3: Any, key: str, version_id: str) -> list[str]:
    """Ask for a batch delete; returns the errors in the answer, or the one that it is."""
    try:
        told = s3.delete_objects(Bucket=versions.bucket, Delete={"Objects": [{"Key": key, "VersionId": version_id}]})
    except ClientError as error:
        return [error.response["Error"]["Code"]]
    return [each["Code"] for each in told.get("Errors", ())]


@pytest.mark.long
@pytest.mark.parametrize("whose", ["changed", "removed"])
@pytest.mark.parametrize("who", ["reader", "writer", "duckdb"])
def test_no_version_of_others_is_opened(versions: Versions, who: str, whose: str) -> None:
    """Older than what is there, or all that is left of it: refused, and every version is as before. Root does what only reads."""
    s3, (key, version_id), before = versions.keys[who], versions.others[whose], versions.list_all()
    for kind in (list_reads, list_changes):
        for what, call in kind(versions, s3, key, version_id).items():
            assert is_refused(call), what
    assert delete_several(versions, s3, key, version_id) == ["AccessDenied"]
    started = versions.root.create_multipart_upload(Bucket=versions.bucket, Key=f"{versions.location}/data/parts")
    part = {name: started[name] for name in ("Bucket", "Key", "UploadId")} | {"PartNumber": 1}
    source = {"Bucket": versions.bucket, "Key": key, "VersionId": version_id}
    assert is_refused(s3.upload_part_copy, **part, CopySource=source)
    assert versions.root.upload_part_copy(**part, CopySource=source)["CopyPartResult"]["ETag"]
    assert versions.list_all() == before
    assert versions.root.get_bucket_versioning(Bucket=versions.bucket)["Status"] == "Enabled"
    for what, call in list_reads(versions, versions.root, key, version_id).items():
        assert not is_refused(call), what
    assert versions.root.get_object(**source)["Body"].read() == b"first"


@pytest.mark.long
@pytest.mark.parametrize("who", ["reader", "writer"])
def test_versions_of_the_own_stay(versions: Versions, who: str) -> None:
    """What is there now is read as ever, and removed by who writes; what was there before no key takes away."""
    s3, (key, version_id) = versions.keys[who], versions.own
    assert s3.get_object(Bucket=versions.bucket, Key=key)["Body"].read() == b"second"
    for what, call in list_changes(versions, s3, key, version_id).items():
        assert is_refused(call), what
    assert delete_several(versions, s3, key, version_id) == ["AccessDenied"]
    if who == "writer":
        removed = {"Bucket": versions.bucket, "Key": f"{key}.removed"}
        first = s3.put_object(**removed, Body=b"x")["VersionId"]
        s3.delete_object(**removed)
        assert versions.root.get_object(**removed, VersionId=first)["Body"].read() == b"x"
    assert versions.root.get_object(Bucket=versions.bucket, Key=key, VersionId=version_id)["Body"].read() == b"first"


@pytest.mark.long
def test_no_version_is_signed_for(versions: Versions) -> None:
    """Neither of others' objects nor of the own, nor as what is copied from; without one it is, where the store gets signatures at all."""
    own = f"/{versions.bucket}/{quote(versions.own[0])}"
    for key, version_id in (versions.own, *versions.others.values()):
        path = f"/{versions.bucket}/{quote(key)}?versionId={version_id}"
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            assert versions.signing.ask(method, path).status == 403
        assert versions.signing.ask("PUT", f"{own}.copy", {"x-amz-copy-source": path}).status == 403
    assert versions.signing.ask("GET", f"/{versions.bucket}?versions&prefix={quote(versions.location)}/").status == 403
    plain = versions.signing.send("GET", own)
    assert plain == (200, b"second") or plain[0] == 501
