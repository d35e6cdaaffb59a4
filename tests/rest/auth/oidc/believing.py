"""A guarded server that believes an issuer, as its administrator and as the issuer's principals."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import Answer
from tests.support.lakes import FreshLake
from tests.support.oidc.running import Issuing

T = "namespaces/a/tables/t"


@dataclass(frozen=True, slots=True)
class Believing:
    """The server, who manages it, and the issuer."""

    guarded: Guarded
    managed: Managed
    issuer: Issuing

    def get(self, path: str, token: str | None = None, **claims: Any) -> Answer:
        """Ask as the issuer's principal `alice`, or with that token."""
        return self.guarded.server.get(path, bear(token or self.issuer.token(**claims)))

    def count_fetches(self) -> float:
        """How often the server says it asked the issuer with success."""
        return self.guarded.server.count("duckicelake_issuer_fetches_total", issuer="acme", outcome="done")


def bear(token: str) -> Mapping[str, str]:
    """The header with a token."""
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def believe(lake: FreshLake, issuer: Issuing, **changed: Any) -> Generator[Believing]:
    """A server on a lake with tables that believes the issuer."""
    with guard(lake, oidc_issuers=[issuer.settings(**changed)]) as guarded:
        yield Believing(guarded, Managed(guarded), issuer)
