"""Every `fix_*.py` beside this file is a plugin with fixtures for all rooms."""

from pathlib import Path

from hypothesis import settings

pytest_plugins = sorted(f"tests.{path.stem}" for path in Path(__file__).parent.glob("fix_*.py"))

# What is looked for is the same in every run, so that a change alone turns a test red; `--long` looks elsewhere each time.
# A machine that does other work too may take its time over an example.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("long", deadline=None)
settings.load_profile("same")
