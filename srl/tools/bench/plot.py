"""Bars and lines as SVG: no plotting library is needed."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

COLOURS = ("#4878a8", "#e49444", "#5aa469", "#c85a54", "#8d6cab", "#c9a227", "#7f7f7f", "#67b7c7")
_WIDTH, _BAR, _GAP, _LEFT, _RIGHT, _TOP = 760, 22, 10, 200, 110, 44


def write_bars(
    path: Path | str,
    title: str,
    bars: Mapping[str, Mapping[str, float]],
    *,
    unit: str,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    marks: Mapping[str, float] | None = None,
) -> None:
    """Write horizontal bars, each a stack of named parts.

    Args:
        path: an .svg file.
        title: what is shown.
        bars: label to its parts, name to length; parts of one name have one colour.
        unit: of the lengths.
        intervals: label to the interval drawn over the end of its bar.
        marks: name to a length at which a line is drawn through all bars.
    """
    intervals, marks = intervals or {}, marks or {}
    names = list(dict.fromkeys(name for parts in bars.values() for name in parts))
    ends = [sum(parts.values()) for parts in bars.values()]
    ends += [high for _, high in intervals.values()] + list(marks.values())
    scale = (_WIDTH - _LEFT - _RIGHT) / (max(ends, default=0) or 1)
    bottom = _TOP + len(bars) * (_BAR + _GAP)
    shapes = [_text(12, 20, title, size=15)]
    for number, (label, parts) in enumerate(bars.items()):
        top = _TOP + number * (_BAR + _GAP)
        shapes += _bar(label, parts, names, top, scale)
        if label in intervals:
            shapes += _whisker(intervals[label], top + _BAR / 2, scale)
    for name, length in marks.items():
        x = _LEFT + length * scale
        shapes.append(_line(x, _TOP - 6, x, bottom, dashed=True))
        shapes.append(_text(x, _TOP - 10, f"{name} {length:,.4g}", anchor="middle", size=11))
    height = bottom + 34
    if len(names) > 1:
        shapes += _legend(names, bottom + 14)
    shapes.append(_text(_WIDTH - 12, height - 6, unit, anchor="end", size=11))
    _write(path, height, shapes)


def _write(path: Path | str, height: float, shapes: Sequence[str]) -> None:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
    head += f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">'
    back = f'<rect width="{_WIDTH}" height="{height}" fill="white"/>'
    Path(path).write_text("\n".join([head, back, *shapes, "</svg>"]) + "\n")


def _bar(
    label: str, parts: Mapping[str, float], names: Sequence[str], top: float, scale: float
) -> list[str]:
    shapes, x = [_text(_LEFT - 8, top + 15, label, anchor="end")], float(_LEFT)
    for name, length in parts.items():
        width = max(length, 0.0) * scale
        colour = COLOURS[names.index(name) % len(COLOURS)]
        shapes.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
        )
        x += width
    total = sum(parts.values())
    return [*shapes, _text(x + 6, top + 15, f"{total:,.4g}", size=12)]


def _whisker(interval: tuple[float, float], y: float, scale: float) -> list[str]:
    low, high = (_LEFT + length * scale for length in interval)
    ends = [_line(x, y - 5, x, y + 5) for x in (low, high)]
    return [_line(low, y, high, y), *ends]


def _legend(names: Sequence[str], y: float) -> list[str]:
    shapes, x = [], 12.0
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        shapes.append(f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="10" height="10" fill="{colour}"/>')
        shapes.append(_text(x + 14, y, name, size=11))
        x += 24 + 6.5 * len(name)
    return shapes


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}>{escape(text)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="black"{dash}/>'


def write_lines(
    path: Path | str,
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    linear: bool = False,
) -> None:
    """Write lines through points, both axes by powers of ten.

    Args:
        path: an .svg file.
        title: what is shown.
        lines: name to its points, all of them above 0.
        x: what goes to the right.
        y: what goes up.
        linear: with even axes instead, for any points, which are not marked.
    """
    left, right, top, bottom = 90, _WIDTH - 30, _TOP, 400
    points = [point for line in lines.values() for point in line]
    scale = _Linear if linear else _Scale
    across = scale([p[0] for p in points], left, right)
    up = scale([p[1] for p in points], bottom, top)
    shapes = [_text(12, 20, title, size=15)]
    digits = 9 if linear else 4
    shapes += [
        _text(across(value), bottom + 18, f"{value:,.{digits}g}", anchor="middle", size=11)
        for value in across.ticks()
    ]
    for value in up.ticks():
        shapes.append(_text(left - 8, up(value) + 4, f"{value:,.{digits}g}", anchor="end", size=11))
        shapes.append(_line(left, up(value), right, up(value), dashed=True))
    shapes += [_line(left, bottom, right, bottom), _line(left, top, left, bottom)]
    for number, line in enumerate(lines.values()):
        colour = COLOURS[number % len(COLOURS)]
        places = [(across(px), up(py)) for px, py in line]
        way = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        shapes.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        shapes += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>'
            for px, py in ([] if linear else places)
        ]
    shapes += _legend(list(lines), bottom + 44)
    shapes.append(_text(right, bottom + 34, x, anchor="end", size=11))
    shapes.append(_text(left + 6, top + 4, y, size=11))
    height = bottom + 60
    _write(path, height, shapes)


class _Scale:
    """Where values are on an axis by powers of ten."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low, self._high = min(values) / 1.15, max(values) * 1.15
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        part = math.log(value / self._low) / math.log(self._high / self._low)
        return self._start + part * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Round values within: 1, 2 and 5 times powers of ten."""
        first = math.floor(math.log10(self._low))
        last = math.ceil(math.log10(self._high))
        values = [m * 10.0**n for n in range(first, last + 1) for m in (1, 2, 5)]
        return [value for value in values if self._low <= value <= self._high]


class _Linear:
    """Where values are on an even axis."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low, self._high = min(values), max(*values, min(values) + 1e-9)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        part = (value - self._low) / (self._high - self._low)
        return self._start + part * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Up to ten round values within."""
        span = self._high - self._low
        step = next(
            m * 10.0**n for n in range(-12, 16) for m in (1, 2, 5) if span < 10 * m * 10.0**n
        )
        first, last = math.ceil(self._low / step), math.floor(self._high / step)
        return [number * step for number in range(first, last + 1)]
