"""OAuth clients: the `clients` setting, and verification of secrets. In memory only.

`app` parses the setting at start. `access.tokens` verifies secrets: hashed ones on the threads that `rest/routes/tokens.py` has for them,
one that was verified lately on the event loop. `catalog.access_rules` creates secrets, on a worker thread or in a command.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import BoundedSemaphore

from cryptography.exceptions import InvalidKey, UnsupportedAlgorithm
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from duckicelake.access.grants import BadGrant, Grants, parse_grants
from duckicelake.errors import CatalogError

HASHED = re.compile(r"\$argon2id\$v=19\$m=(\d{1,7}),t=(\d{1,3}),p=(\d{1,2})\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{16,128}")
CLIENT = re.compile(r"(?P<id>[!-+./-9;-{}~-]{1,128}):(?P<secret>\$argon2id\$[^|\s]*|[^,|\n]+)\|(?P<grants>[^,\n]+)")
BETWEEN = re.compile(r"[,\n]")
MOST_HASH_KIB = 1024 * 1024
MOST_SIDE_BY_SIDE = 2
"""Argon2id is slow and needs memory by design; wrong secrets can occupy only so many threads with it at once."""


class BadClients(CatalogError):
    """The `clients` setting is malformed; the message never contains a secret."""


@dataclass(frozen=True, slots=True)
class Client:
    """A principal: its id, its secret (plain text or an argon2id hash), and its grants in settings.

    `origin`: the lake that holds the account and the number of the secret (`lake/1.2`); empty for a client of the settings.
    """

    client_id: str
    secret: str = field(repr=False)
    grants: Grants
    origin: str = ""

    @property
    def is_hashed(self) -> bool:
        """True if the secret is an argon2id hash."""
        return self.secret.startswith("$argon2id$")


def parse_clients(text: str) -> dict[str, Client]:
    """Return the clients of `id:secret|grant|grant,…`, separated by commas or line breaks; `#` starts a comment line.

    Raises: BadClients: names the malformed client by its number
    """
    lines = [line.strip() for line in text.splitlines()]
    rest = "\n".join(line for line in lines if line and not line.startswith("#"))
    clients: dict[str, Client] = {}
    while rest:
        number = len(clients) + 1
        found = CLIENT.match(rest)
        end = found.end() if found else 0
        if found is None or (rest[end:] and not BETWEEN.match(rest[end])):
            raise BadClients(f"Client {number} is not written as `id:secret|grant|…`, such as `reader:…|ns:analytics:r`.")
        client = _parse_client(found, number)
        if client.client_id in clients:
            raise BadClients(f"Client {number} has the id {client.client_id!r}, which another one has too.")
        clients[client.client_id] = client
        rest = rest[end:].lstrip(",\n ")
    return clients


def _parse_client(found: re.Match[str], number: int) -> Client:
    secret = found["secret"].strip()
    hashed = HASHED.fullmatch(secret)
    if secret.startswith("$argon2") and (hashed is None or int(hashed[1]) > MOST_HASH_KIB):
        raise BadClients(f"Client {number} has a secret that is hashed, and not as argon2id writes it ($argon2id$v=19$m=…,t=…,p=…$…$…).")
    try:
        return Client(found["id"], secret, parse_grants(part.strip() for part in found["grants"].split("|")))
    except BadGrant as error:
        raise BadClients(f"Client {number} ({found['id']}): {error.message}") from error


class SecretChecker:
    """Verifies secrets in a time that does not depend on how much of the secret is right."""

    def __init__(self, clients: Mapping[str, Client], key: bytes) -> None:
        self._clients = clients
        self._key = key
        self._hashing = BoundedSemaphore(MOST_SIDE_BY_SIDE)
        self._decoy = next((client for client in clients.values() if client.is_hashed), None)

    def digest(self, client_id: str, secret: str) -> bytes:
        """Return a keyed hash of an id and a secret, for keeping in memory; it is useless without the key of this process."""
        content = f"{len(client_id)}:{client_id}{secret}".encode("utf-8", "surrogatepass")
        return hmac.new(self._key, content, hashlib.sha256).digest()

    def find(self, client_id: str, secret: str, kept: Sequence[Mapping[str, Client]] = ()) -> Client | None:
        """Return the client of the settings, or else of a lake, with this id and secret; None if there is none.

        Slow for hashed secrets. An unknown id then takes as long, so that the time does not show which ids exist.
        """
        known = self._clients.get(client_id)
        others = [clients[client_id] for clients in kept if client_id in clients] if known is None else []
        if others:
            return next((other for other in others if self._is_right(client_id, secret, other)), None)
        decoy = self._decoy or next((client for clients in kept for client in clients.values()), None)
        is_right = self._is_right(client_id, secret, known or decoy)
        return known if is_right else None

    def _is_right(self, client_id: str, secret: str, known: Client | None) -> bool:
        if known is not None and known.is_hashed:
            with self._hashing:
                return _verify(secret, known.secret)
        expected = self.digest(client_id, known.secret if known else "")
        return hmac.compare_digest(expected, self.digest(client_id, secret))


def make_secret() -> tuple[str, str]:
    """Return a new random secret and its argon2id hash."""
    secret = secrets.token_urlsafe(32)
    hashing = Argon2id(salt=secrets.token_bytes(16), length=32, iterations=2, lanes=1, memory_cost=19_456)
    return secret, hashing.derive_phc_encoded(secret.encode())


def _verify(secret: str, hashed: str) -> bool:
    try:
        Argon2id.verify_phc_encoded(secret.encode("utf-8", "surrogatepass"), hashed)
    except (InvalidKey, UnsupportedAlgorithm, ValueError):
        return False
    return True
