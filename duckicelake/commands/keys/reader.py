"""What DuckDB attaches the lake with as somebody who may only read: asked of the running server, with an account."""

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from psycopg.conninfo import conninfo_to_dict

from duckicelake.commands.facts import HIDDEN, Facts
from duckicelake.commands.keys.credential import TOLD_BY
from duckicelake.config import SettingsError
from duckicelake.errors import NotAuthorized, ServiceUnavailable

SECONDS = 30.0
EXTENSIONS = "INSTALL httpfs; LOAD httpfs; INSTALL postgres; LOAD postgres; INSTALL ducklake; LOAD ducklake;\n"
SECRET_KEYS = ("s3.secret-access-key", "s3.session-token")


def format_reader(facts: Facts, *, show_secrets: bool) -> str:
    """Return the SQL that attaches the lake read-only, as far as the account may read, until its credentials end.

    Raises: SettingsError: no account is known. NotAuthorized: the server gives it nothing; says why. ServiceUnavailable: it does not answer
    """
    if facts.credential is None:
        raise SettingsError(f"Only an account gets credentials for read-only DuckLake: say id:secret of one by {TOLD_BY}.")
    client_id, secret = facts.split_credential()
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret, "scope": "catalog"}
    token = _ask(Request(facts.token_uri, urlencode(form).encode(), method="POST"))["access_token"]
    path = f"{facts.catalog_uri}/v1/{quote(facts.prefix, safe='')}/ducklake-credentials"
    given = _ask(Request(path, headers={"Authorization": f"Bearer {token}"}))
    text = EXTENSIONS + "".join(f"{statement};\n" for statement in given["statements"])
    for hidden in () if show_secrets else _list_secrets(given):
        text = text.replace(hidden, HIDDEN)
    return text


def _list_secrets(given: Mapping[str, Any]) -> list[str]:
    password = conninfo_to_dict(given["dsn"]).get("password")
    keys = [each["config"][name] for each in given["storage-credentials"] for name in SECRET_KEYS]
    return [*keys, *([str(password)] if password else [])]


def _ask(request: Request) -> Any:
    try:
        with urlopen(request, timeout=SECONDS) as answer:
            return json.loads(answer.read())
    except HTTPError as error:
        with error:
            raise NotAuthorized(f"The server refuses credentials for read-only DuckLake: {_read_refusal(error)}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServiceUnavailable(f"No catalog answers at {request.host} ({type(error).__name__}). Is the server running?") from None


def _read_refusal(error: HTTPError) -> str:
    try:
        told = json.loads(error.read())
    except ValueError:
        told = None
    match told:
        case {"error": {"message": str(message)}}:
            return message
        case {"error_description": str(description)}:
            return description
        case _:
            return f"status {error.code}"
