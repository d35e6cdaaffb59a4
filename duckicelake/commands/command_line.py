"""The command line that calls `duckicelake`, for messages that recommend a command."""

import os
import shlex
import shutil
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
WRAPPER = CHECKOUT / "scripts" / "duckicelake"


def format_command(*arguments: str) -> str:
    """Return a command line that works in a new shell in this folder: `scripts/duckicelake` of a checkout, else the installed command."""
    return " ".join((shlex.quote(_get_command()), *arguments))


def _get_command() -> str:
    if WRAPPER.is_file():
        return _shorten(WRAPPER)
    installed = Path(sys.executable).parent / "duckicelake"
    found = shutil.which("duckicelake")
    if found is not None and Path(found).resolve() == installed.resolve():
        return "duckicelake"
    return _shorten(installed)


def _shorten(path: Path) -> str:
    """Return the path relative to the working folder if it is below it, else unchanged."""
    below = os.path.relpath(path)
    return str(path) if below.startswith("..") else below
