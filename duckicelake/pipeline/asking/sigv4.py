"""Requests to catalogs that want AWS's signatures, by AWS's own signer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError

from duckicelake.errors import BadRequest
from duckicelake.pipeline.asking.wire import Request

REGION, SERVICE = "rest.signing-region", "rest.signing-name"
KEYS = ("rest.access-key-id", "rest.secret-access-key", "rest.session-token")


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """By what a request is signed, and for which service of which region; keys that end are renewed by AWS's library."""

    credentials: Any = field(repr=False)
    service: str
    region: str


def load_signing_keys(properties: Mapping[str, str]) -> SigningKeys:
    """The keys that the properties name, else those that AWS's tools find. Raises: BadRequest: there are none, or no region."""
    if bool(properties.get(KEYS[0])) != bool(properties.get(KEYS[1])):
        raise BadRequest(f"{KEYS[0]} and {KEYS[1]} belong together")
    make_session: Any = getattr(boto3, "Session")  # noqa: B009  boto3 makes its clients at run time, without types
    try:
        session = make_session(*map(properties.get, KEYS))
        found = session.get_credentials()
        region = properties.get(REGION) or session.region_name
    except (BotoCoreError, ValueError) as error:
        raise BadRequest(f"the keys that sign requests cannot be found: {error}") from error
    if found is None:
        raise BadRequest(f"there are no keys to sign requests with: set AWS_PROFILE, or write {KEYS[0]} and {KEYS[1]} to --properties")
    if not region:
        raise BadRequest(f"signatures are of a region: name it by {REGION}, or set AWS_REGION")
    return SigningKeys(found, properties.get(SERVICE) or "execute-api", region)


def sign_request(request: Request, keys: SigningKeys) -> Mapping[str, str]:
    """The headers of a request, all of them signed."""
    signed = AWSRequest(request.method, request.url, dict(request.headers), request.body or b"")
    SigV4Auth(keys.credentials.get_frozen_credentials(), keys.service, keys.region).add_auth(signed)
    return {name.lower(): text for name, text in signed.headers.items()}
