"""Signatures: the same that AWS's own client makes."""

from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.store.signing import CanonicalRequest, RootCredentials, sign

KEYS = RootCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
DATE = "20261122T060000Z"
HEADERS = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": DATE}
TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=12)


class Botocore(S3SigV4Auth):
    """Its signer, at a date of ours, with the headers and the payload as they are."""

    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = DATE

    def payload(self, request: Any) -> str:
        return "UNSIGNED-PAYLOAD"


def sign_by_botocore(wire: CanonicalRequest) -> str:
    """What botocore makes of a request."""
    query = f"?{wire.encoded_query}" if wire.query else ""
    request = AWSRequest(wire.method, f"https://{wire.host}{wire.encoded_path}{query}", headers=dict(wire.headers))
    request.context["timestamp"] = DATE
    auth = Botocore(Credentials(KEYS.access_key_id, KEYS.secret_access_key), "s3", "eu-central-1")
    canonical = auth.canonical_request(request)
    signature = auth.signature(auth.string_to_sign(request, canonical), request)
    return signature


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "/lake/a/b.parquet", ()),
        ("PUT", "/lake/a b/ü=1/~+.parquet", (("partNumber", "1"), ("uploadId", "a/b+c="))),
        ("GET", "/lake", (("prefix", "a b/"), ("list-type", "2"), ("delimiter", ""))),
        ("POST", "/lake/%41", (("uploads", ""),)),
    ],
)
def test_known_requests(method: str, path: str, query: tuple[tuple[str, str], ...]) -> None:
    """Keys with odd characters, parameters in any order and without values."""
    wire = CanonicalRequest(method, "s3.eu-central-1.amazonaws.com", path, query, HEADERS)
    told = sign(wire, KEYS, "eu-central-1")
    assert told.endswith(f"Signature={sign_by_botocore(wire)}")
    assert told.startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261122/eu-central-1/s3/aws4_request, SignedHeaders=host;x-amz")


@given(TEXTS, TEXTS, TEXTS)
def test_whatever_the_key_is(key: str, value: str, header: str) -> None:
    """Path, query and headers are spelled as botocore does."""
    more = header.encode("ascii", "ignore").decode().strip()
    wire = CanonicalRequest("PUT", "h.example:9000", f"/b/x{key}", (("prefix", value),), {**HEADERS, "x-amz-checksum-mode": more})
    assert urlsplit(f"https://h{wire.encoded_path}").path == wire.encoded_path
    assert sign(wire, KEYS, "eu-central-1").endswith(sign_by_botocore(wire))
