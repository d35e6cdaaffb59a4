"""Token services that do not do what they should, and one whose keys end within seconds."""

import base64
import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import boto3
import jwt

from duckicelake.embedded.object_store import StoreAccess
from tests.support.shared_stack import SharedStack

ANSWER = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>{}</AccessKeyId><SecretAccessKey>{}</SecretAccessKey><SessionToken>{}</SessionToken><Expiration>{}</Expiration>
</Credentials></AssumeRoleResult></AssumeRoleResponse>"""
REFUSAL = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>{}</Code>
<Message>Role arn:aws:iam::123456789012:role/lake with the policy that was sent.</Message></Error></ErrorResponse>"""
Asked = Mapping[str, str]
"""The form of a request, and its headers in lower case."""
Given = tuple[str, str, str, str]


@contextmanager
def run_sts(give: Callable[[Asked], Given | str]) -> Generator[str]:
    """A token service that gives what it is told to give: id, secret, token and end, or a code for a refusal; returns where it is."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            headers = {name.lower(): told for name, told in self.headers.items()}
            answer = give(headers | {name: told[0] for name, told in form.items()})
            body = (REFUSAL.format(answer) if isinstance(answer, str) else ANSWER.format(*answer)).encode()
            self.send_response(400 if isinstance(answer, str) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as running:
        thread = Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def assume(store: StoreAccess, asked: Asked, **policy: str) -> Any:
    """The credentials that the store's own token service gives for a request."""
    sts = boto3.client(
        "sts",
        endpoint_url=store.endpoint,
        region_name=store.region,
        aws_access_key_id=store.access_key_id,
        aws_secret_access_key=store.secret_access_key,
    )
    told = {"RoleArn": asked["RoleArn"], "RoleSessionName": asked["RoleSessionName"], "DurationSeconds": int(asked["DurationSeconds"])}
    return sts.assume_role(**told, **policy)["Credentials"]


def assume_until(stack: SharedStack, asked: Asked, ends_s: int) -> Given:
    """Keys that really end at that time: those of SeaweedFS, whose sessions say in a signed token when they do."""
    settings = json.loads((Path(stack.extension_folder).parent / "seaweedfs.d" / "iam.json").read_text())
    found = assume(stack.store, asked, Policy=asked["Policy"])
    claims = jwt.decode(found["SessionToken"], options={"verify_signature": False})
    header = jwt.get_unverified_header(found["SessionToken"])
    token = jwt.encode({**claims, "exp": ends_s}, base64.b64decode(settings["sts"]["signingKey"]), "HS256", header)
    return found["AccessKeyId"], found["SecretAccessKey"], token, datetime.fromtimestamp(ends_s, UTC).isoformat()
