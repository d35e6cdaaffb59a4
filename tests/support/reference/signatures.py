"""Whether a request carries AWS's Signature Version 4, made again from what came, as AWS describes it for services other than S3.

Source: AWS «Signature Version 4 for API requests»
"""

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote

from tests.support.reference.front import Came

ALGORITHM = "AWS4-HMAC-SHA256"
PLAIN = "-_.~"
TOLERANCE = timedelta(minutes=5)


def find_signature_fault(came: Came, key_id: str, secret: str, scope: str) -> str | None:
    """What is wrong with a request that is to be signed by this key, for `region/service`; None when nothing is."""
    kind, _, rest = came.headers.get("authorization", "").partition(" ")
    if kind != ALGORITHM:
        return "it is not signed"
    said = dict(part.strip().split("=", 1) for part in rest.split(","))
    date = came.headers["x-amz-date"]
    if abs(datetime.now(UTC) - datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)) > TOLERANCE:
        return "it was signed at another time"
    whole = f"{date[:8]}/{scope}/aws4_request"
    if said["Credential"] != f"{key_id}/{whole}":
        return f"it is signed for {said['Credential']}"
    names = said["SignedHeaders"].split(";")
    unsigned = [name for name in came.headers if name.startswith("x-amz-") and name not in names]
    if unsigned or "host" not in names:
        return f"not everything is signed: {unsigned}"
    text = "\n".join((ALGORITHM, date, whole, hashlib.sha256(describe(came, names).encode()).hexdigest()))
    return None if hmac.compare_digest(make_signature(secret, whole, text), said["Signature"]) else f"another signature than that of {text}"


def describe(came: Came, names: list[str]) -> str:
    """The request in its canonical spelling."""
    path, _, query = came.target.partition("?")
    pairs = sorted((quote(name, safe=PLAIN), quote(text, safe=PLAIN)) for name, text in parse_qsl(query, keep_blank_values=True))
    headers = "".join(f"{name}:{' '.join(came.headers[name].split())}\n" for name in names)
    told = "&".join(f"{name}={text}" for name, text in pairs)
    # What the path has percent signs for is written with them once more.
    return "\n".join((came.method, quote(path, safe=f"/{PLAIN}"), told, headers, ";".join(names), hashlib.sha256(came.body).hexdigest()))


def make_signature(secret: str, scope: str, text: str) -> str:
    """The signature of a text."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
