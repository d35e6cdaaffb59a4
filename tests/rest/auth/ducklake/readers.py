"""DuckDB users with nothing but what the catalog gives them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from duckdb import DuckDBPyConnection

from tests.rest.auth.principals import Guarded
from tests.support.lakes import open_duckdb

PATH = "ducklake-credentials"
OWN = "lake_readers"


@dataclass(frozen=True, slots=True)
class Told:
    """What somebody was given."""

    guarded: Guarded
    answer: Mapping[str, Any]

    @property
    def role(self) -> str:
        """The role's name."""
        return self.connect_by["user"]

    @property
    def connect_by(self) -> Mapping[str, str]:
        """The parts of the connection string."""
        return dict(part.split("=", 1) for part in self.answer["dsn"].split())

    def duckdb(self) -> DuckDBPyConnection:
        """A session with the lake attached, that has no other keys."""
        conn = open_duckdb()
        self.guarded.lake.opened.callback(conn.close)
        for statement in self.answer["statements"]:
            conn.execute(statement)
        return conn

    def psycopg(self) -> psycopg.Connection:
        """A session of Postgres that looks for tables where DuckDB would."""
        conn = psycopg.connect(self.answer["dsn"], autocommit=True, options=f"-c search_path={OWN}")
        self.guarded.lake.opened.callback(conn.close)
        return conn


def ask(guarded: Guarded, headers: Mapping[str, str]) -> Told:
    """Ask with a token."""
    answer = guarded.server.get(PATH, headers)
    assert answer.status == 200, answer.body
    assert answer.headers["cache-control"] == "no-store"
    return Told(guarded, answer.json)


def ask_as(guarded: Guarded, principal: str, scope: str = "catalog") -> Told:
    """Ask as a principal of the settings."""
    return ask(guarded, {"Authorization": f"Bearer {guarded.token(principal, scope)}"})
