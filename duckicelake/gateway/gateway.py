"""All routes of a server: opened when the server starts, found by the name that a request gives. Used on the event loop."""

import hashlib
import socket
from collections.abc import Sequence

from duckicelake.gateway.headers import HOP
from duckicelake.gateway.route import Route
from duckicelake.gateway.upstream import Upstream


class Gateway:
    """The routes by name. `catch_all`: the route of every prefix and warehouse that has no other meaning here; None: there is none.

    `address`: where this server listens; a request that comes back to it over a route is a loop.
    """

    def __init__(self, routes: Sequence[Route], catch_all: str | None, address: str) -> None:
        self.upstreams = {route.name: Upstream(route, build_via(route, address)) for route in routes}
        self.catch_all = None if catch_all is None else self.upstreams[catch_all]

    def open(self) -> None:
        """Open the clients of all routes."""
        for upstream in self.upstreams.values():
            upstream.open()

    async def close(self) -> None:
        """Close all connections."""
        for upstream in self.upstreams.values():
            await upstream.close()


def build_via(route: Route, address: str) -> bytes:
    """Return the pseudonym of a route in Via headers. It is the same in all workers of a server, and another one on other servers."""
    named = "\0".join((socket.gethostname(), address, route.name, route.uri))
    return HOP + b"-" + hashlib.blake2b(named.encode(), digest_size=8).hexdigest().encode()
