"""Vended credentials: session policies for one table, and temporary credentials from STS AssumeRole.

Law: a policy names folders and objects of one table and nothing above them; characters that a server could take for a wildcard,
an escape or another spelling never get into a policy.
`catalog.credentials` calls this on worker threads, after the scope was read from Postgres. A request to STS is made only if no
credentials of the same policy are cached. `duckicelake check --storage` calls it for a scratch folder.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from duckicelake.errors import ServiceUnavailable, Unsupported
from duckicelake.store.s3 import StoreSettings
from duckicelake.store.uris import parse_uri

PLAIN_KEY = re.compile(r"[A-Za-z0-9_.=@:+/-]+")
ROLE_OF_AWS = re.compile(r"arn:(aws[a-z-]*):iam:")
PLAIN_PARTITION = "aws"
LONGEST_POLICY = 2048
"""The limit of AWS's and SeaweedFS's STS, in characters."""

READ = ("s3:GetObject",)
LIST = ("s3:ListBucket",)
WRITE = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")


@dataclass(frozen=True, slots=True)
class CredentialScope:
    """The scope of credentials: folders (URIs that end with `/`) and single objects to read, and folders to write.

    `unlisted`: folders whose objects may be read, but not listed.
    """

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()


def is_on_s3(scope: CredentialScope) -> bool:
    """True if everything in the scope is on S3; the local disk has no credentials."""
    return all(parse_uri(uri).bucket for uri in (*scope.folders, *scope.files, *scope.writable, *scope.unlisted))


def parse_partition(role_arn: str) -> str:
    """Return the AWS partition of a role, for the ARNs in policies; other stores accept only `aws`."""
    found = ROLE_OF_AWS.match(role_arn)
    return found[1] if found else PLAIN_PARTITION


def split_reads(uris: Iterable[str], partition: str = PLAIN_PARTITION) -> list[tuple[str, list[str]]]:
    """Return policies, as few as possible, to GET the objects in folders (URIs that end with `/`) and single objects; each with its URIs.

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


def format_policy(scope: CredentialScope, partition: str = PLAIN_PARTITION) -> str:
    """Return the session policy of a scope; equal scopes give equal texts.

    Raises: Unsupported: a name has no safe spelling, or the policy is longer than STS accepts
    """
    statements: list[dict[str, Any]] = []
    readable = [_format_plain_key(folder) + "/*" for folder in (*scope.folders, *scope.unlisted)]
    readable += [_format_plain_key(uri) for uri in scope.files]
    if readable:
        statements.append(_allow(READ, readable, partition))
    statements += [_allow_list(bucket, keys, partition) for bucket, keys in _group(scope.folders)]
    if scope.writable:
        statements.append(_allow(WRITE, [_format_plain_key(folder) + "/*" for folder in scope.writable], partition))
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
    return _format_plain_key(uri) + "/*" * uri.endswith("/")


def _allow(actions: Sequence[str], resources: Sequence[str], partition: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": [f"arn:{partition}:s3:::{resource}" for resource in resources]}


def _allow_list(bucket: str, keys: Sequence[str], partition: str) -> dict[str, Any]:
    prefixes = [spelled for key in keys for spelled in (f"{key}/", f"{key}/*")]
    return _allow(LIST, [bucket], partition) | {"Condition": {"StringLike": {"s3:prefix": prefixes}}}


def _group(folders: Iterable[str]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for folder in folders:
        bucket, _, key = _format_plain_key(folder).partition("/")
        found.setdefault(bucket, []).append(key)
    return sorted(found.items())


def _format_plain_key(uri: str) -> str:
    """Return `bucket/key` without a trailing slash. Raises: Unsupported: the key is empty or has no safe spelling."""
    address = parse_uri(uri)
    if not address.key or not PLAIN_KEY.fullmatch(address.key) or not PLAIN_KEY.fullmatch(address.bucket):
        raise Unsupported(
            f"No key can be given for {uri!r}: in a policy its name could mean something else. "
            "Use names of letters, digits, '_', '.', '=', '-', or keys of your own."
        )
    return f"{address.bucket}/{address.key}"


SESSION_NAME = "duckicelake"
MOST_CACHED = 4096


@dataclass(frozen=True, slots=True)
class StsSettings:
    """Settings of STS: the role to assume and the lifetime of its sessions. Without endpoint, that of the store or of AWS."""

    role_arn: str
    endpoint: str | None = None
    external_id: str | None = None
    lifetime_s: int = 3600


@dataclass(frozen=True, slots=True)
class SessionCredentials:
    """Temporary credentials. They are not given out after `fresh_until_s`, half of their lifetime."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at_ms: int
    fresh_until_s: float


class Vendor:
    """Vends credentials and caches them by policy while they are fresh. Safe to share between threads."""

    def __init__(self, store: StoreSettings, sts: StsSettings) -> None:
        self.store = store
        self.partition = parse_partition(sts.role_arn)
        self._sts = sts
        self._endpoint = sts.endpoint or store.endpoint
        self._cache: OrderedDict[str, SessionCredentials] = OrderedDict()
        self._lock = Lock()
        self._client: Any = None

    @property
    def lifetime_s(self) -> int:
        """Lifetime of credentials."""
        return self._sts.lifetime_s

    def get_keys(self, policy: str, now_s: float) -> SessionCredentials:
        """Return credentials that allow what the policy allows.

        Raises: ServiceUnavailable: STS does not answer or refuses
        """
        with self._lock:
            cached = self._cache.get(policy)
            if cached is not None and now_s < cached.fresh_until_s:
                self._cache.move_to_end(policy)
                return cached
        keys = self._assume(policy, now_s)
        with self._lock:
            self._cache[policy] = keys
            self._cache.move_to_end(policy)
            while len(self._cache) > MOST_CACHED:
                self._cache.popitem(last=False)
        return keys

    def _assume(self, policy: str, now_s: float) -> SessionCredentials:
        request = {
            "RoleArn": self._sts.role_arn,
            "RoleSessionName": SESSION_NAME,
            "DurationSeconds": self._sts.lifetime_s,
            "Policy": policy,
        }
        if self._sts.external_id is not None:
            request["ExternalId"] = self._sts.external_id
        try:
            found = self._open_client().assume_role(**request)["Credentials"]
        except (BotoCoreError, ClientError) as error:
            raise self._unavailable(error) from None
        expires_at_s = found["Expiration"].timestamp()
        fresh_until_s = now_s + (expires_at_s - now_s) / 2
        return SessionCredentials(
            found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"], int(expires_at_s * 1000), fresh_until_s
        )

    def _unavailable(self, error: Exception) -> ServiceUnavailable:
        # The message of STS may contain keys and policies; its error code does not.
        response: Any = getattr(error, "response", {})
        code = str(response.get("Error", {}).get("Code") or type(error).__name__)
        where = self._endpoint or f"sts.{self.store.region}.amazonaws.com"
        return ServiceUnavailable(f"The token service (STS) at {where} gives no keys for this table ({code}); loads without keys go on.")

    def _open_client(self) -> Any:
        with self._lock:
            if self._client is None:
                make_client: Callable[..., Any] = getattr(boto3, "client")  # noqa: B009  boto3 makes its clients at run time, without types
                self._client = make_client(
                    "sts",
                    endpoint_url=self._endpoint,
                    region_name=self.store.region,
                    aws_access_key_id=self.store.access_key_id,
                    aws_secret_access_key=self.store.secret_access_key,
                    config=Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 2}),
                )
            return self._client
