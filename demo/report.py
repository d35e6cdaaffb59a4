"""The report: a line for each comparison, and what went wrong in full below it."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from demo.compare import Answer, Comparison


def print_section(console: Console, title: str, comparisons: Sequence[Comparison]) -> None:
    """Print one table of comparisons; problems follow it in their own lines."""
    readers = [answer.reader for answer in comparisons[0].answers]
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("Question")
    table.add_column("Rows", justify="right")
    for reader in readers:
        table.add_column(reader, justify="right", no_wrap=True)
    for comparison in comparisons:
        cells = [format_answer(answer) for answer in comparison.answers]
        table.add_row(comparison.question.title, f"{comparison.row_count:,}", *cells)
    console.print(table)
    for comparison in comparisons:
        for answer in comparison.answers:
            if answer.problem is not None:
                text = f"{answer.reader}, {comparison.question.title}: {answer.problem}"
                console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def format_answer(answer: Answer) -> str:
    """An answer as a cell: a tick or a cross, and the time it took."""
    return f"{'[green]✓' if answer.problem is None else '[red]✗'} {answer.seconds:5.2f} s[/]"


def format_verdict(comparisons: Iterable[Comparison]) -> str:
    """The last line."""
    made = [answer for comparison in comparisons for answer in comparison.answers[1:]]
    differing = sum(answer.problem is not None for answer in made)
    if differing:
        return f"[red]{differing} of {len(made)} comparisons differ."
    return f"[green]All {len(made)} comparisons agree: every reader sees the rows that DuckDB sees."
