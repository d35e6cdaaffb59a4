"""Which metadata file of a Hadoop table counts: the same one that Java finds."""

import pytest

from duckicelake.errors import NoSuchTable
from duckicelake.pipeline.transfer.serverless import choose_version


def plain(*versions: int) -> list[str]:
    """Files of these versions."""
    return [f"v{version}.metadata.json" for version in versions]


@pytest.mark.parametrize(
    ("hint", "versions", "chosen"),
    [
        pytest.param(b"3", (1, 2, 3), 3, id="right"),
        pytest.param(b"1", (1, 2, 3), 3, id="stale"),
        pytest.param(b"3\nand more", (1, 2, 3), 3, id="first line alone"),
        pytest.param(b"+2", (1, 2), 2, id="sign, as Java reads it"),
        pytest.param(b"1", (1, 2, 4, 5), 2, id="stale before a gap"),
        pytest.param(None, (1, 2, 3), 3, id="missing"),
        pytest.param(None, (4, 7), 7, id="missing, with a gap"),
        pytest.param(b"", (1, 2), 2, id="empty"),
        pytest.param(b"1 ", (1, 2), 2, id="torn: a space"),
        pytest.param(b"\xff\xfe", (1, 2), 2, id="torn: no text"),
        pytest.param("٢".encode(), (1, 2, 3), 3, id="torn: other digits"),
        pytest.param(None, (1, 2, 10, 9), 10, id="numbers, not texts"),
    ],
)
def test_the_newest_version_in_a_row_counts(hint: bytes | None, versions: tuple[int, ...], chosen: int) -> None:
    """From the hint on, or from the highest when there is none that can be read."""
    assert choose_version(hint, plain(*versions)) == f"v{chosen}.metadata.json"


@pytest.mark.parametrize(
    ("hint", "versions", "told"),
    [
        pytest.param(b"5", (1, 2, 3), "version 5, which is missing; the newest that is there is 3", id="ahead"),
        pytest.param(b"1", (10, 11), "version 1, which is missing; the newest that is there is 11", id="torn: the first digit of 10"),
        pytest.param(b"2", (), "version 2, which is missing; there is none", id="nothing there"),
    ],
)
def test_a_hint_at_a_missing_version_is_refused(hint: bytes, versions: tuple[int, ...], told: str) -> None:
    """Java does not guess either: perhaps newer files are lost."""
    with pytest.raises(NoSuchTable, match=told):
        choose_version(hint, plain(*versions))


def test_packed_files_are_found_under_both_names() -> None:
    """A plain one first, as Java looks for them; other files are none."""
    assert choose_version(None, ["v1.metadata.json", "v2.gz.metadata.json"]) == "v2.gz.metadata.json"
    assert choose_version(b"1", ["v1.metadata.json", "v2.metadata.json.gz"]) == "v2.metadata.json.gz"
    assert choose_version(None, ["v2.gz.metadata.json", "v2.metadata.json", "v2.metadata.json.gz"]) == "v2.metadata.json"
    assert choose_version(None, ["00001-a.metadata.json", "v1.metadata.json.crc", "snap-1.avro", "vx.metadata.json"]) is None
    assert choose_version(None, []) is None
