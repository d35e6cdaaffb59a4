"""What can be asked of a transfer, and names that lead nowhere."""

from typing import Any

import pytest
import typer

from duckicelake.cli_pipeline import build_pipeline
from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.transfer.copies import join_location
from duckicelake.pipeline.transfer.options import FOLDERS, Form, read_options
from tests.pipeline.transfer.ferry import format_given


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param({"mode": "copy", "history": True}, "a copy has the present rows alone", id="history of copies"),
        *(
            pytest.param({"form": form, "mode": mode, "history": True}, f"--history: .* --format {form} .* without it", id=f"{mode} {form}")
            for form in ("hive", "delta")
            for mode in ("register", "copy")
        ),
        pytest.param({"mode": "move"}, "none of register, copy", id="unknown mode"),
        pytest.param({"form": "hudi"}, "none of hadoop, jdbc, rest, hive, delta", id="unknown format"),
        pytest.param({"into": "a..b"}, "--into 'a..b' is no namespace", id="into nothing"),
        pytest.param({"into": '"a.b'}, "is no namespace: .* in quotes", id="into half a name"),
        pytest.param({"property": ["alone"]}, "no NAME=VALUE", id="no property"),
        pytest.param({"place": "https://me:hidden@host"}, "a password in PLACE", id="a password in the call"),
        pytest.param({"place": "postgresql://h/db?password=hidden"}, "a password in PLACE", id="a password of Postgres"),
        pytest.param({"place": "postgres://h/db?ssl%70assword=hidden"}, "a password in PLACE", id="a password of a key"),
        pytest.param({"place": "https://host/api?token=hidden"}, "a password in PLACE", id="a token"),
        pytest.param({"place": "postgresql://[::1/db"}, "PLACE is no URL", id="no URL"),
        pytest.param({"place": "postgresql://h/db?what=hidden"}, "PLACE is no URL", id="no URL of Postgres"),
        *(
            pytest.param({"property": ["a=b", f"{name}=hidden"]}, f"--property {name}: others .* --properties", id=name)
            for name in (
                *("jdbc.password", "credential", "token", "s3.secret-access-key", "s3.session-token", "s3.sse.key"),
                *("header.Authorization", "header.X-Api-Key", "header.Cookie", "rest.auth.basic.password", "rest.secret-access-key"),
            )
        ),
        *(
            pytest.param({"property": [f"oauth2-server-uri={url}"]}, "--property oauth2-server-uri: others", id=name)
            for name, url in {
                "a password in an address": "https://me:hidden@login.example/token",
                "a secret in a query": "https://login.example/token?client_secret=hidden",
                "an address that cannot be read": "https://[hidden",
            }.items()
        ),
    ],
)
def test_calls_that_cannot_be_meant(given: dict[str, Any], told: str) -> None:
    """Each is refused before anything is looked at."""
    with pytest.raises(BadRequest, match=told) as refused:
        read_options(format_given(**{"place": "/place", "tables": ()} | given))
    assert "hidden" not in refused.value.message


def test_a_namespace_may_have_a_dot() -> None:
    """In quotes, as everywhere."""
    assert read_options(format_given(place="/place", tables=(), into='"my.ns".b')).into == ("my.ns", "b")


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../x"])
def test_names_do_not_lead_out_of_a_warehouse(name: str) -> None:
    """A table is in the folder of its name, or nowhere."""
    assert join_location("/w/", TableIdent(("a", "b.c"), "t")) == "/w/a/b.c/t"
    for ident in (TableIdent(("ns",), name), TableIdent((name,), "t")):
        with pytest.raises(BadRequest, match="cannot be the name of a folder"):
            join_location("/w", ident)


def test_properties_come_from_a_file_and_the_call(tmp_path: Any) -> None:
    """The call is the stronger one; what is no text is refused by name."""
    path = tmp_path / "p.toml"
    path.write_text('"s3.region" = "x"\nwarehouse = "one"\n')
    options = read_options(
        format_given("s3://bucket/w", ("a.t", "t"), properties=path, property=["warehouse=two", "uri=http://host/a?b=c"])
    )
    assert options.properties == {"s3.region": "x", "warehouse": "two", "uri": "http://host/a?b=c"}
    assert (options.form, options.tables) == ("hadoop", (TableIdent(("a",), "t"), TableIdent((), "t")))
    path.write_text("s3.region = 'x'\n")
    with pytest.raises(BadRequest, match="s3 must be a text; write names with dots in quotes"):
        read_options(format_given("/w", (), properties=path))


@pytest.mark.parametrize(
    ("job", "forms", "places"),
    [
        pytest.param("import", tuple(Form), ("s3://", "http://", "postgresql://", "sqlite://", "Parquet", "Delta"), id="import"),
        pytest.param("export", tuple(form for form in Form if form not in FOLDERS), ("s3://", "http://", "postgresql://"), id="export"),
    ],
)
def test_the_help_names_what_a_job_takes(job: str, forms: tuple[str, ...], places: tuple[str, ...]) -> None:
    """Every kind of catalog that it goes to, and no other."""
    pipeline: Any = typer.main.get_command(build_pipeline())
    told = {one.name: one.help for one in pipeline.commands[job].params}
    assert told["form"].partition(": ")[2].rstrip(".").split(", ") == ["auto", *forms]
    assert [place for place in places if place not in told["place"]] == []
