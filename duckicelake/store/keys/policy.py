"""What a vended key may do, as the store's token service takes it.

Law: a policy names folders and objects of one table and nothing above them; what a server could take for a wildcard,
an escape or another spelling never gets into one.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from duckicelake.errors import Unsupported
from duckicelake.store.place import parse_uri

PLAIN_KEY = re.compile(r"[A-Za-z0-9_.=@:+/-]+")
ROLE_OF_AWS = re.compile(r"arn:(aws[a-z-]*):iam:")
PLAIN_PARTITION = "aws"
LONGEST_POLICY = 2048
"""Characters that STS takes, AWS's and SeaweedFS's."""

READ = ("s3:GetObject",)
LIST = ("s3:ListBucket",)
WRITE = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")


@dataclass(frozen=True, slots=True)
class KeyScope:
    """What a key is for: folders (URIs that end with `/`) and single objects to read, folders to write."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


def is_on_s3(scope: KeyScope) -> bool:
    """Tell whether everything in the scope lies on S3, where there are keys at all."""
    return all(parse_uri(uri).bucket for uri in (*scope.folders, *scope.files, *scope.writable))


def find_partition(role_arn: str) -> str:
    """Return the partition of AWS that a role is of, as policies name resources in it. Other stores know the plain one alone."""
    found = ROLE_OF_AWS.match(role_arn)
    return found[1] if found else PLAIN_PARTITION


def split_reads(uris: Iterable[str], partition: str = PLAIN_PARTITION) -> list[tuple[str, list[str]]]:
    """Return as few policies as it takes to GET what lies in folders (URIs that end with `/`) and single objects, each with those it has.

    Raises: Unsupported: a name has no safe spelling
    """
    found: list[tuple[str, list[str]]] = []
    policy, chunk = "", list[str]()
    for uri in uris:
        wider = _format([_allow(READ, [_resource(each) for each in (*chunk, uri)], partition)])
        if chunk and len(wider) > LONGEST_POLICY:
            found.append((policy, chunk))
            chunk, wider = [], _format([_allow(READ, [_resource(uri)], partition)])
        policy, chunk = wider, [*chunk, uri]
    return [*found, (policy, chunk)] if chunk else found


def format_policy(scope: KeyScope, partition: str = PLAIN_PARTITION) -> str:
    """Return the session policy of a scope, always the same text for the same one.

    Raises: Unsupported: a name in it has no safe spelling, or there is more than a policy holds
    """
    statements: list[dict[str, Any]] = []
    readable = [*(_name(folder) + "/*" for folder in scope.folders), *(_name(uri) for uri in scope.files)]
    if readable:
        statements.append(_allow(READ, readable, partition))
    statements += [_allow_list(bucket, keys, partition) for bucket, keys in _group(scope.folders)]
    if scope.writable:
        statements.append(_allow(WRITE, [_name(folder) + "/*" for folder in scope.writable], partition))
    policy = _format(statements)
    if len(policy) > LONGEST_POLICY:
        raise Unsupported(
            f"The table's files lie in too many places for one key ({len(policy)} of {LONGEST_POLICY} characters of policy): "
            "it shares its folder with another table, maybe one whose files wait for ducklake_cleanup_old_files, or has "
            "files from elsewhere. Rewrite it into a new table, or use keys of your own."
        )
    return policy


def _format(statements: Sequence[Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def _resource(uri: str) -> str:
    return _name(uri) + "/*" * uri.endswith("/")


def _allow(actions: Sequence[str], resources: Sequence[str], partition: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": [f"arn:{partition}:s3:::{resource}" for resource in resources]}


def _allow_list(bucket: str, keys: Sequence[str], partition: str) -> dict[str, Any]:
    prefixes = [spelled for key in keys for spelled in (f"{key}/", f"{key}/*")]
    return _allow(LIST, [bucket], partition) | {"Condition": {"StringLike": {"s3:prefix": prefixes}}}


def _group(folders: Iterable[str]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for folder in folders:
        bucket, _, key = _name(folder).partition("/")
        found.setdefault(bucket, []).append(key)
    return sorted(found.items())


def _name(uri: str) -> str:
    """Return `bucket/key` without a slash at its end. Raises: Unsupported: the key has no safe spelling, or is none."""
    address = parse_uri(uri)
    if not address.key or not PLAIN_KEY.fullmatch(address.key) or not PLAIN_KEY.fullmatch(address.bucket):
        raise Unsupported(
            f"No key can be given for {uri!r}: in a policy its name could mean something else. "
            "Use names of letters, digits, '_', '.', '=', '-', or keys of your own."
        )
    return f"{address.bucket}/{address.key}"
