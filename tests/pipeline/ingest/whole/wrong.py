"""What cannot be read."""

from pathlib import Path
from typing import Any

import pyarrow as pa

TABLES = ("trips", "trips__ingested", "trips__quarantine")


def damage(path: Path) -> Path:
    """A Parquet file whose end says what is in it, and whose rows cannot be read."""
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)
    return path


def lacks_utf8() -> Any:
    """A text that is not in UTF-8."""
    return pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
