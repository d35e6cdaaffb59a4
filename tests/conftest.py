"""Every `fix_*.py` beside this file is a plugin with fixtures for all rooms."""

from pathlib import Path

pytest_plugins = sorted(f"tests.{path.stem}" for path in Path(__file__).parent.glob("fix_*.py"))
