"""Vended keys as an S3 client, and what a store says to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.rest.auth.principals import Guarded

DELEGATION = {"X-Iceberg-Access-Delegation": "vended-credentials"}
REFUSED = frozenset({"AccessDenied", "403", "InvalidAccessKeyId"})


def open_s3(endpoint: str, keys: tuple[str, str, str | None], signature: str = "s3v4") -> Any:
    """An S3 client of these keys."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=keys[0],
        aws_secret_access_key=keys[1],
        aws_session_token=keys[2],
        config=Config(signature_version=signature, s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


def open_vended(config: Mapping[str, str]) -> Any:
    """An S3 client of keys as a load tells them."""
    keys = (config["s3.access-key-id"], config["s3.secret-access-key"], config["s3.session-token"])
    return open_s3(config["s3.endpoint"], keys)


def open_root(guarded: Guarded) -> Any:
    """An S3 client of the root's keys."""
    store = guarded.lake.store
    return open_s3(store.endpoint, (store.access_key_id, store.secret_access_key, None))


@dataclass(frozen=True, slots=True)
class Vended:
    """A table as somebody loaded it with keys."""

    s3: Any
    metadata: Mapping[str, Any]
    config: Mapping[str, str]
    prefixes: tuple[str, ...]
    etag: str


def load_with_keys(guarded: Guarded, principal: str, path: str) -> Vended:
    """Load a table as a principal, with keys."""
    headers = {"Authorization": f"Bearer {guarded.token(principal)}", **DELEGATION}
    answer = guarded.server.get(path, headers)
    assert answer.status == 200, answer.body
    told = answer.json
    prefixes = tuple(each["prefix"] for each in told["storage-credentials"])
    assert all(each["config"] == told["config"] for each in told["storage-credentials"])
    return Vended(open_vended(told["config"]), told["metadata"], told["config"], prefixes, answer.headers["etag"])


def split(uri: str) -> tuple[str, str]:
    """Bucket and key of a URI."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def is_refused(call: Any, **arguments: Any) -> bool:
    """Whether the store refuses a call; False when it does it, or says that nothing is there."""
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"] in REFUSED
    return False


def resign(s3: Any, signature: str) -> Any:
    """A client with the same keys that signs otherwise."""
    keys = s3._request_signer._credentials
    return open_s3(s3.meta.endpoint_url, (keys.access_key, keys.secret_key, keys.token), signature)


def send(url: str, method: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Send a request as it is; returns status and body."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request(method, f"{parts.path}{'?' * bool(parts.query)}{parts.query}", body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def post_form(url: str, fields: Mapping[str, str]) -> tuple[int, bytes]:
    """Send a form with a file, as browsers do."""
    lines = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{told}\r\n' for name, told in fields.items()]
    lines.append('--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nsent by a form\r\n--x--\r\n')
    return send(url, "POST", "".join(lines).encode(), {"Content-Type": "multipart/form-data; boundary=x"})
