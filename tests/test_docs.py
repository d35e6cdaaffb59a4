"""The documentation says what is so."""

import re
from pathlib import Path

import pytest

from duckicelake.config import IssuerSettings, RouteSettings, list_setting_names

ROOT = Path(__file__).parents[1]
SETTINGS = (ROOT / "docs" / "settings.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()
ROUTER = (ROOT / "docs" / "router.md").read_text()
README = (ROOT / "README.md").read_text()
OWN_LAKE = (ROOT / "docs" / "own-lake.md").read_text()
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\((?!https?://)([^)#]*)#([^)]+)\)")
PAGES = [
    *(Path(name) for name in ("README.md", "MISSING.md", "CONTRIBUTING.md")),
    *sorted(page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md")),
]


def documented(text: str) -> set[str]:
    """Return the names in the first column of the page's tables."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([a-z0-9_]+)`", cell)}


@pytest.mark.parametrize("name", list_setting_names())
def test_every_setting_is_documented(name: str) -> None:
    """Whoever adds a setting says what it means."""
    assert name in documented(SETTINGS)


def test_no_documented_setting_is_made_up() -> None:
    """The page names nothing that the server would refuse."""
    assert documented(SETTINGS) == set(list_setting_names())


def test_every_setting_of_an_issuer_is_documented() -> None:
    """In one table, which names no other."""
    table = SECURITY.partition("| of an issuer |")[2].partition("\n\n")[0]
    assert documented(table) == set(IssuerSettings.model_fields)


def test_every_option_of_a_route_is_documented() -> None:
    """In one table, which names no other."""
    table = ROUTER.partition("| option of a route |")[2].partition("\n\n")[0]
    assert documented(table) == set(RouteSettings.model_fields)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the repository."""
    targets = [target.replace("\\_", "_") for target in LINK.findall((ROOT / page).read_text())]
    assert [target for target in targets if not (ROOT / page.parent / target).exists()] == []


def list_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_anchors_name_headings(page: Path) -> None:
    """Every link to a part of a page names a heading of that page."""
    links = [
        (ROOT / page.parent / target if target else ROOT / page, anchor) for target, anchor in ANCHOR.findall((ROOT / page).read_text())
    ]
    assert [f"{target}#{anchor}" for target, anchor in links if anchor not in list_anchors(target)] == []


@pytest.mark.parametrize("command", ["scripts/serve", "scripts/test"])
def test_the_readmes_commands_exist(command: str) -> None:
    """The two commands of the README are there and may be run."""
    assert f"    {command}\n" in README
    assert (ROOT / command).stat().st_mode & 0o111


def test_the_settings_of_the_page_on_own_lakes_exist() -> None:
    """Every environment variable in docs/own-lake.md is a setting."""
    names = {name.lower() for name in re.findall(r"DUCKICELAKE_([A-Z0-9_]+)", OWN_LAKE)}
    assert names
    assert names <= set(list_setting_names())


def test_the_page_on_own_lakes_counts_the_triggers() -> None:
    """As many as `init` makes there."""
    made = (ROOT / "duckicelake" / "lake" / "install.sql").read_text().count("\nCREATE OR REPLACE TRIGGER ")
    numbers = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    assert f"{numbers[made]} triggers and some indexes" in OWN_LAKE


def test_decisions_are_short_and_whole() -> None:
    """A decision says context, choice and price within a screen."""
    for page in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        text = page.read_text()
        assert all(f"**{part}.**" in text for part in ("Context", "Choice", "Price")), page.name
        assert len(text.splitlines()) <= 25, page.name


def test_every_decision_is_in_the_index_under_its_number() -> None:
    """Each page once, and its heading begins with its number."""
    folder = ROOT / "docs" / "decisions"
    pages = sorted(page.name for page in folder.glob("[0-9]*.md"))
    listed = re.findall(r"^\| \[(\d+)\]\((\S+)\) \|", (folder / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [(page[:3], page) for page in pages]
    assert [page for page in pages if not (folder / page).read_text().startswith(f"# {page[:3]} ")] == []
