"""Jars are fetched once, and never trusted."""

import sys
from pathlib import Path

import pytest

from duckicelake.pipeline.common.java import Jar, JarUnavailable, fetch_jars

_CONTENT = b"the published bytes"
_SHA256 = "20139b7f2cbb8718eeaa22d38745d005a642545d21cc47fa49475c42d72e044e"


def make_fetcher(folder: Path, content: bytes) -> list[str]:
    """A command that stands where Java stands, and puts these bytes where Ivy would put the jar."""
    script = folder / "fetcher.py"
    script.write_text(
        "import sys\n"
        "words = sys.argv[1:]\n"
        "group, artifact, version = words[words.index('-dependency') + 1:][:3]\n"
        "pattern = words[words.index('-retrieve') + 1]\n"
        "path = pattern.replace('[artifact]', artifact).replace('[revision]', version).replace('[ext]', 'jar')\n"
        f"open(path, 'wb').write({content!r})\n"
    )
    return [sys.executable, str(script)]


def a_jar(sha256: str) -> Jar:
    """A jar of that checksum."""
    return Jar("org.example", "thing", "1.0", sha256)


def test_a_missing_jar_is_fetched_with_a_word_and_kept(tmp_path: Path) -> None:
    """The second time nothing is fetched."""
    said: list[str] = []
    fetcher = make_fetcher(tmp_path, _CONTENT)
    paths = fetch_jars([a_jar(_SHA256)], tmp_path / "jars", fetcher, said.append)
    assert [path.read_bytes() for path in paths] == [_CONTENT]
    assert any("thing-1.0.jar" in line for line in said)
    said.clear()
    assert fetch_jars([a_jar(_SHA256)], tmp_path / "jars", ["/bin/false"], said.append) == paths
    assert said == []


def test_a_damaged_jar_is_fetched_again(tmp_path: Path) -> None:
    """What lies in the cache is checked before each use."""
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "thing-1.0.jar").write_bytes(b"half of the publ")
    paths = fetch_jars([a_jar(_SHA256)], folder, make_fetcher(tmp_path, _CONTENT), lambda line: None)
    assert paths[0].read_bytes() == _CONTENT


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    """A jar that is not the one we know is not kept."""
    with pytest.raises(JarUnavailable, match="expected SHA-256"):
        fetch_jars([a_jar(_SHA256)], tmp_path / "jars", make_fetcher(tmp_path, b"something else"), lambda line: None)
    assert not list((tmp_path / "jars").iterdir())


def test_a_fetch_that_fails_says_which(tmp_path: Path) -> None:
    """The message names the jar."""
    with pytest.raises(JarUnavailable, match=r"thing-1\.0\.jar"):
        fetch_jars([a_jar(_SHA256)], tmp_path / "jars", ["/bin/false"], lambda line: None)
