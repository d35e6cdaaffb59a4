"""The teller: chapters with a heading, what happens in a line, and answers as small tables."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Teller:
    """Where the story is told."""

    console: Console

    @contextmanager
    def chapter(self, title: str) -> Generator[None]:
        """A heading, and at the end how long it took."""
        began = perf_counter()
        self.console.print()
        self.console.rule(f"[bold]{title}", align="left")
        yield
        self.console.print(f"[dim]{perf_counter() - began:.1f} s")

    def say(self, text: str) -> None:
        """What happens."""
        self.console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)

    def show(self, titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """An answer."""
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for place, title in enumerate(titles):
            is_number = bool(rows) and isinstance(rows[0][place], int | float)
            table.add_column(title, justify="right" if is_number else "left")
        for row in rows:
            table.add_row(*(Text(_format(value)) for value in row))
        self.console.print(table)


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
