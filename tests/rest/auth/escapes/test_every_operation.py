"""Every request that AWS's own client knows: asked about another table's object and the whole bucket, none does or tells anything."""

from collections.abc import Generator, Mapping
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.escapes.ground import BUCKET
from tests.rest.auth.escapes.test_escapes import WHO, Field, open_field
from tests.rest.auth.principals import guard
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack
from tests.support.tiers import long_after

REFUSED = frozenset({400, 403, 405, 501})
EMPTY: Mapping[str, Mapping[str, Any]] = {
    "ListBuckets": {"Buckets": []},
    "ListDirectoryBuckets": {"Buckets": []},
    "DeleteBucketWebsite": {},
}
"""Those that a store answers to anybody, and what it may say then: that there is nothing, and nothing was there to remove."""

ELSEWHERE = frozenset({"WriteGetObjectResponse"})
"""For a host of Lambda's."""


@pytest.fixture(scope="module")
def field(each_stack: SharedStack) -> Generator[Field]:
    """Keys of a.t1, and objects of others, on each kind of store."""
    with make_lake(each_stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        yield open_field(guarded)


def fill(shape: Any, key: str, name: str = "") -> Any:
    """The least that an operation must be told, about that object; a value that its model allows."""
    told = {"Bucket": BUCKET, "Key": key, "Prefix": key, "CopySource": f"{BUCKET}/{key}", "RenameSource": f"{BUCKET}/{key}"}
    if name in told:
        return told[name]
    if shape.type_name == "structure":
        chosen = list(shape.members)[:1] if getattr(shape, "is_tagged_union", False) else [*shape.required_members]
        chosen += [each for each in ("Key", "Prefix") if each in shape.members and not chosen.count(each)]
        return {each: fill(shape.members[each], key, each) for each in chosen}
    if shape.type_name == "string":
        return shape.enum[0] if shape.enum else "x"
    plain: dict[str, Any] = {"map": {}, "boolean": True, "integer": 1, "long": 1, "timestamp": 0, "blob": b"x"}
    return [fill(shape.member, key)] if shape.type_name == "list" else plain[shape.type_name]


def open_careless(s3: Any) -> Any:
    """A client with the same keys that leaves it to the store what is allowed in a request."""
    keys = s3._request_signer._credentials
    config = Config(
        signature_version="s3v4", s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, parameter_validation=False
    )
    return boto3.client(
        "s3",
        endpoint_url=s3.meta.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        aws_session_token=keys.token,
        config=config,
    )


def ask(s3: Any, operation: str, method: str, key: str) -> tuple[int, Mapping[str, Any]]:
    """Status and answer of an operation; a batch of which each part is denied is denied."""
    shape = s3.meta.service_model.operation_model(operation).input_shape
    try:
        told = getattr(s3, method)(**({} if shape is None else fill(shape, key)))
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], {}
    denied = [error["Code"] for error in told.get("Errors", ())]
    return 403 if denied == ["AccessDenied"] else 200, told


@pytest.mark.whole
@pytest.mark.core
@pytest.mark.parametrize("who", long_after(1, WHO))
def test_no_operation_does_anything_to_others(field: Field, who: str) -> None:
    """Each is refused, or unknown to the store; all objects are there as before, and root may do with one what was refused."""
    s3, key = open_careless(field.open(who)), field.others["sibling"]
    methods = {operation: method for method, operation in s3.meta.method_to_api_mapping.items() if operation not in ELSEWHERE}
    assert len(methods) > 90
    before = {name: field.root.head_object(Bucket=BUCKET, Key=other)["ETag"] for name, other in field.others.items()}
    for operation, method in methods.items():
        status, told = ask(s3, operation, method, key)
        is_empty = operation in EMPTY and EMPTY[operation].items() <= told.items()
        assert status in REFUSED or is_empty, (operation, status, told)
    assert {name: field.root.head_object(Bucket=BUCKET, Key=other)["ETag"] for name, other in field.others.items()} == before
    root = open_careless(field.root)
    for operation in ("GetObject", "HeadObject", "ListObjectsV2", "GetObjectTagging", "ListMultipartUploads", "GetBucketVersioning"):
        assert ask(root, operation, methods[operation], key)[0] == 200, operation
