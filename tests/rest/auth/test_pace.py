"""Who asks too often is told when to come again, and is in nobody's way."""

from tests.rest.auth.principals import guard
from tests.support.lakes import FreshLake

T = "namespaces/a/tables/t"


def test_a_principal_that_asks_too_often_waits_and_no_other(lake: FreshLake) -> None:
    """429 in Iceberg's shape for reads and writes alike, ready answers too; counted, and nothing is done."""
    with guard(lake, requests_per_s=0.01, requests_burst=4) as guarded:
        reader, admin = ({"Authorization": f"Bearer {guarded.token(name)}"} for name in ("reader", "admin"))
        assert [guarded.server.get(T, reader).status for _ in range(4)] == [200] * 4
        for method, body in (("GET", None), ("POST", b"{}"), ("DELETE", None)):
            answer = guarded.server.ask(method, T, reader, body)
            assert answer.error == (429, "SlowDownException")
            assert 90 <= int(answer.headers["retry-after"]) <= 100
        assert guarded.server.ask("HEAD", T, reader).status == 429
        assert guarded.server.get(T, admin).status == 200
        again = {"Authorization": f"Bearer {guarded.token('reader')}"}
        assert guarded.server.get(T, again).status == 429
        assert guarded.server.count("duckicelake_requests_total", operation="loadTable", status="429") == 2


def test_nobody_waits_unless_settings_say_so(lake: FreshLake) -> None:
    """As it is by default."""
    with guard(lake) as guarded:
        reader = {"Authorization": f"Bearer {guarded.token('reader')}"}
        assert {guarded.server.get(T, reader).status for _ in range(150)} == {200}
