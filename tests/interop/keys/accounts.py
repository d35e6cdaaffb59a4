"""Stock clients as accounts, set up by what `connect` prints; and a catalog whose keys are dead until they are refreshed."""

import math
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event

from starlette.types import Receive, Scope, Send

from duckicelake.app import build_app
from duckicelake.commands.facts import Facts, format_facts
from duckicelake.commands.snippets import format_spark, format_trino
from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.principals import GRANTS, Guarded, secret_of
from tests.rest.serving import make_settings, serve, serve_app
from tests.support.going_on import check_going_on
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark
from tests.support.spark_snippet import read_spark_settings
from tests.support.sts import Asked, Given, assume_until, run_sts
from tests.support.trino.server import Trino
from tests.support.waiting import wait_for

LIFE_S = 600


def facts_of(guarded: Guarded, principal: str) -> Facts:
    """What `connect` knows of the server, for a principal."""
    lake = guarded.lake
    (settings,) = make_settings(lake, iceberg_path=lake.iceberg_path, data_path=lake.data_path).lakes()
    return replace(format_facts(settings, guarded.server.uri), credential=f"{principal}:{secret_of(principal)}")


def list_spark_settings(guarded: Guarded, principal: str) -> Mapping[str, str]:
    """What `connect` prints for Spark, without its `--conf`, below the catalog's own name."""
    settings = read_spark_settings(format_spark(facts_of(guarded, principal)))
    prefix = "spark.sql.catalog.lake"
    return {name.removeprefix(prefix): text for name, text in settings.items() if name.startswith(prefix)}


def add_spark(spark: Spark, guarded: Guarded, principal: str, more: Mapping[str, str] | None = None) -> str:
    """Make the catalog known to Spark as `connect` says it; returns its name there."""
    name = f"{principal}_{guarded.lake.name}"
    for key, text in {**list_spark_settings(guarded, principal), **(more or {})}.items():
        spark.session.conf.set(f"spark.sql.catalog.{name}{key}", text)
    return name


def add_trino(trino: Trino, guarded: Guarded, principal: str | None, own: Mapping[str, str] | None = None) -> str:
    """Make the catalog known to Trino as `connect` says it; returns its name there. Nobody: who it is, another issuer's settings say."""
    lines = [line.partition("=") for line in format_trino(facts_of(guarded, principal or "nobody")).splitlines()]
    account = ("oauth2.credential", "oauth2.server-uri", "oauth2.scope") if principal is None else ()
    return trino.add({name: text for name, _, text in lines if name != "connector.name" and not name.endswith(account)} | dict(own or {}))


def check_going_on_without_account(guarded: Guarded, name: str, *, travels_after_merge: bool = True) -> None:
    """Fail unless DuckDB goes on with a table of `a` as with one of its own; asked of a server that wants no account."""
    with serve(make_settings(guarded.lake)) as server:
        check_going_on(Served(guarded.lake, server), ("a", name), travels_after_merge=travels_after_merge)


@dataclass(slots=True)
class Handed:
    """Which keys were handed out: dead ones, and living ones to those who came for newer ones, or after as many dead ones as may be."""

    stack: SharedStack
    refreshing: Event = field(default_factory=Event)
    dead: int = 0
    living: int = 0
    most_dead: float = math.inf
    life_s: int = LIFE_S
    ends_s: int = 0

    def give(self, asked: Asked) -> Given:
        """Keys that ended a minute ago, but while somebody asks for newer ones."""
        if self.refreshing.is_set() or self.dead >= self.most_dead:
            self.living += 1
            self.ends_s = int(time.time()) + self.life_s
            return assume_until(self.stack, asked, self.ends_s)
        self.dead += 1
        return assume_until(self.stack, asked, int(time.time()) - 60)

    def wait_over(self) -> None:
        """Wait until the last living keys have ended."""
        wait_for(lambda: time.time() > self.ends_s or None, "keys to end")


@contextmanager
def guard_with_dead_keys(stack: SharedStack, lake: FreshLake) -> Generator[tuple[Guarded, Handed]]:
    """A server with a table a.rows whose loads come with keys that are over, and whose `loadCredentials` gives good ones."""
    given = Handed(stack)
    conn = lake.duckdb()
    conn.execute("CREATE SCHEMA a")
    conn.execute("CREATE TABLE a.rows AS SELECT range AS i FROM range(50000)")
    clients = ",".join(f"{name}:{secret_of(name)}|{grants}" for name, grants in GRANTS.items())
    with run_sts(given.give) as sts:
        app = build_app(make_settings(lake, require_auth=True, oauth_clients=clients, sts_role_arn=ROLE_ARN, sts_endpoint=sts))

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or not scope["path"].endswith("/credentials"):
                return await app(scope, receive, send)
            given.refreshing.set()
            try:
                await app(scope, receive, send)
            finally:
                given.refreshing.clear()

        with serve_app(watched) as server:
            yield Guarded(lake, server), given
