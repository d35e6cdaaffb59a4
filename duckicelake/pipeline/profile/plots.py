"""Two small plots as SVG: bars of file sizes, and a line of growth. They need nothing but the page they are in."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

from duckicelake.pipeline.profile.state import Point
from duckicelake.pipeline.profile.survey import SizeClass

WIDTH, HEIGHT, MARGIN = 360, 140, 22
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_STEP = 10


def format_bytes(count: int) -> str:
    """A number of bytes with three digits at most and its unit."""
    power = max(0, min((count.bit_length() - 1) // _STEP, len(_UNITS) - 1))
    shown = count / (1 << (_STEP * power))
    return f"{shown:.3g} {_UNITS[power]}" if shown < 1000 else f"{shown:.0f} {_UNITS[power]}"


def format_count(count: int) -> str:
    """A number with its thousands set apart."""
    return f"{count:,}"


def plot_sizes(sizes: Sequence[SizeClass]) -> str:
    """How many files there are of each size: a bar for each power of two from the smallest to the largest."""
    if not sizes:
        return ""
    counts = {one.power: one.files for one in sizes}
    powers = range(min(counts), max(counts) + 1)
    step, most = (WIDTH - 2 * MARGIN) / len(powers), max(counts.values())
    bars: list[str] = []
    for place, power in enumerate(powers):
        files = counts.get(power, 0)
        told = f"{format_count(files)} files from {format_bytes(1 << power)} to {format_bytes(2 << power)}"
        bars.append(_plot_bar(MARGIN + place * step + 1, step - 2, (HEIGHT - 2 * MARGIN) * files / most, told))
    ends = _write_ends(format_bytes(1 << powers[0]), format_bytes(2 << powers[-1]))
    return _frame("File sizes", [*bars, ends, _write(MARGIN, 12, f"File sizes, at most {format_count(most)} files of one")])


def plot_growth(title: str, points: Sequence[Point], measure: Callable[[Point], int], show: Callable[[int], str]) -> str:
    """One measure of a table over time: it stays what it is until the next snapshot."""
    if not points:
        return ""
    first, last = points[0].at_ms, points[-1].at_ms
    most = max(map(measure, points)) or 1
    corners: list[str] = []
    for point in points:
        x = MARGIN + (WIDTH - 2 * MARGIN) * ((point.at_ms - first) / (last - first) if last > first else 1.0)
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * measure(point) / most
        # Straight on until now, then up or down.
        corners.append(f"{'H' if corners else 'M'}{x:.1f}{'V' if corners else ','}{y:.1f}")
    line = f'<path class="line" d="{"".join(corners)}"/>'
    if len(points) == 1:
        line = f'<circle class="bar" r="3" cx="{WIDTH - MARGIN}" cy="{MARGIN}"/>'
    told = f"{title}, at most {show(max(map(measure, points)))}"
    return _frame(title, [line, _write_ends(_format_day(first), _format_day(last)), _write(MARGIN, 12, told)])


def _plot_bar(x: float, width: float, height: float, told: str) -> str:
    place = f'x="{x:.1f}" y="{HEIGHT - MARGIN - height:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}"'
    return f'<rect class="bar" {place}><title>{escape(told)}</title></rect>'


def _frame(title: str, parts: Sequence[str]) -> str:
    ground = f'<path class="ground" d="M{MARGIN},{HEIGHT - MARGIN}H{WIDTH - MARGIN}"/>'
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f'<svg {size} role="img" aria-label="{escape(title)}">{ground}{"".join(parts)}</svg>'


def _write_ends(left: str, right: str) -> str:
    return _write(MARGIN, HEIGHT - 4, left) + _write(WIDTH - MARGIN, HEIGHT - 4, right, "end")


def _write(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _format_day(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M}"
