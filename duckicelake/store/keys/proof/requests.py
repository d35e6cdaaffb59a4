"""The requests of a proof, by the names that its lines have for them."""

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from duckicelake.store.keys.proof.field import CONTENT, OTHER, OWN, TABLE, Field

Requests = Mapping[str, Callable[[], object]]


def list_reads(s3: Any, field: Field, place: str) -> Requests:
    """Return the ways of reading an object and of listing what it lies in."""
    folder = field.folder + place.rpartition("/")[0]
    return {
        "GET": lambda: s3.get_object(**field.name(place))["Body"].read(),
        "HEAD": lambda: s3.head_object(**field.name(place)),
        "LIST": lambda: s3.list_objects_v2(Bucket=field.bucket, Prefix=f"{folder.rstrip('/')}/"),
    }


def list_writes(s3: Any, field: Field, place: str) -> Requests:
    """Return the ways of making, changing and removing an object, each of which leaves none when all are done."""
    return {
        "PUT": lambda: s3.put_object(**field.name(place), Body=CONTENT),
        "CopyObject to it": lambda: s3.copy_object(**field.name(place), CopySource=field.name(f"{TABLE}/{OWN}")),
        "multipart upload": lambda: upload_in_parts(s3, field, place),
        "DELETE": lambda: s3.delete_object(**field.name(place)),
        "DeleteObjects": lambda: delete_several(s3, field, place),
    }


def list_copies(s3: Any, field: Field, sources: Mapping[str, str]) -> Requests:
    """Return the ways of copying others' objects into the table."""
    target = f"{TABLE}/copied"
    whole = {
        f"CopyObject from {whose}": lambda place=place: s3.copy_object(**field.name(target), CopySource=field.name(place))
        for whose, place in sources.items()
    }
    parts = {
        f"UploadPartCopy from {whose}": lambda place=place: upload_in_parts(s3, field, target, place) for whose, place in sources.items()
    }
    return whole | parts


def list_lists(s3: Any, field: Field) -> Requests:
    """Return lists by prefixes that are not the table's, or only begin like it."""
    prefixes = {
        "without a prefix": "",
        "above": field.folder,
        "without the slash at its end": field.folder + TABLE,
        "by a shorter one": field.folder + TABLE[:-1],
        "with a step up": f"{field.folder}{TABLE}/../",
    }

    def find(prefix: str) -> None:
        found = s3.list_objects_v2(Bucket=field.bucket, Prefix=prefix, MaxKeys=1)
        if prefix.endswith("../") and not found.get("KeyCount"):
            # keys have no steps for this store, and so it is the table's own prefix, of nothing
            raise Nothing

    return {f"LIST {how}": lambda prefix=prefix: find(prefix) for how, prefix in prefixes.items()}


def list_steps(s3: Any, field: Field) -> Requests:
    """Return reads of another table by keys that begin as the table's own."""
    steps = ("..", "%2e%2e", ".%2e", "..%2f..", "%252e%252e")

    def find(step: str) -> None:
        try:
            s3.get_object(**field.name(f"{TABLE}/{step}/sibling/{OTHER}"))
        except ClientError as error:
            if is_missing(error):
                raise Nothing from None
            raise

    return {f"GET by {step}": lambda step=step: find(step) for step in steps}


class Nothing(Exception):
    """What was asked for is not there for these keys: as good as refused."""


def is_missing(error: ClientError) -> bool:
    """Tell whether the store says that there is no such object, or could never be one by such a name."""
    told: Any = error.response
    return told.get("ResponseMetadata", {}).get("HTTPStatusCode") in (400, 404)


def upload_in_parts(s3: Any, field: Field, place: str, source: str | None = None) -> None:
    """Write an object in parts, or copy it from another in parts."""
    name = field.name(place)
    upload = s3.create_multipart_upload(**name)["UploadId"]
    told = {**name, "UploadId": upload, "PartNumber": 1}
    try:
        if source is None:
            tag = s3.upload_part(**told, Body=CONTENT)["ETag"]
        else:
            tag = s3.upload_part_copy(**told, CopySource=field.name(source))["CopyPartResult"]["ETag"]
        s3.complete_multipart_upload(**name, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]})
    except ClientError:
        s3.abort_multipart_upload(**name, UploadId=upload)
        raise


def delete_several(s3: Any, field: Field, place: str) -> None:
    """Remove an object with others; a refusal comes inside the answer."""
    answer = s3.delete_objects(Bucket=field.bucket, Delete={"Objects": [{"Key": field.folder + place}]})
    for error in answer.get("Errors", ()):
        raise ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": 403}}, "DeleteObjects")
