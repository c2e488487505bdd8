"""The three forms of chart that the report uses, each a function from data to a pgfplots fragment.

What has no number is drawn as a word at its place, never left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftbench.report.look import FAILURE_COLOUR, TEXT_COLOUR, Look
from draftbench.report.pgf import to_pgfplots
from draftbench.report.tex import Raw, number, tex

BAR_HEIGHT_CM = 0.52
CHARACTER_CM = 0.19
MAX_LABEL_CM = 4.2
MAX_BAR_CM = 1.4
PANEL_CM = 3.7
LINE_WIDTH_CM = 16.0


@dataclass(frozen=True)
class Bar:
    """One bar of a chart.

    Attributes:
        label: its name, beside or below it.
        value: its length; None shows `mark` instead.
        colour: six hexadecimal digits.
        interval: whisker; None draws none.
        points: single values behind it, drawn as dots.
        crossed_at: a second value, drawn as a line across the bar.
        mark: the word in place of a value.
    """

    label: str
    value: float | None
    colour: str
    interval: tuple[float, float] | None = None
    points: tuple[float, ...] = ()
    crossed_at: float | None = None
    mark: str = ""

    @property
    def reach(self) -> float:
        """The largest of all its parts."""
        return max(self.value or 0.0, self.crossed_at or 0.0, *self.points, *(self.interval or ()), 0.0)


@dataclass(frozen=True)
class Line:
    """One line of a chart; a null value is a gap.

    Attributes:
        look: of its method.
        values: y of each point.
        marks: the word for each gap; empty where there is none.
        places: x of each point; None: the panel's ticks in turn.
    """

    look: Look
    values: tuple[float | None, ...]
    marks: tuple[str, ...] = ()
    places: tuple[float | None, ...] | None = None

    def points(self) -> list[tuple[float, float] | None]:
        """(x, y) of each point, None for a gap."""
        places = self.places or tuple(float(index) for index in range(len(self.values)))
        return [None if x is None or y is None else (x, y) for x, y in zip(places, self.values, strict=True)]


@dataclass(frozen=True)
class Panel:
    """A chart with lines.

    Attributes:
        x_label, y_label: texts.
        ticks: names of the x positions 0, 1, ...; empty: x is a number from 0.
        lines: drawn in order.
        title: text above.
        reference: height of a dotted line, or None.
        levels: (look, height) drawn as lines over the whole width.
    """

    x_label: str
    y_label: str
    ticks: tuple[str, ...]
    lines: tuple[Line, ...]
    title: str = ""
    reference: float | None = None
    levels: tuple[tuple[Look, float], ...] = ()

    @property
    def height(self) -> float:
        """The largest y of all parts."""
        values = [point[1] for line in self.lines for point in line.points() if point]
        return max(self.reference or 0.0, *values, *(height for _, height in self.levels), 1e-9)

    @property
    def ends(self) -> tuple[float, float]:
        """The x axis."""
        if self.ticks:
            return -0.3, len(self.ticks) - 0.7
        return 0.0, 1.08 * max(
            (point[0] for line in self.lines for point in line.points() if point), default=1
        )


def key(looks: Sequence[Look], *, with_lines: bool) -> Raw:
    """A legend as centred text, in as few rows of about equal length as usually fit."""
    entries = [_key_line(look) if with_lines else _key_bar(look) for look in looks]
    num_rows = max(math.ceil(len(entries) / (6 if with_lines else 8)), 1)
    length = max(math.ceil(len(entries) / num_rows), 1)
    rows = [entries[start : start + length] for start in range(0, len(entries), length)]
    text = "\\\\\n".join("\\quad ".join(row) for row in rows)
    return Raw("{\\centering\\footnotesize\\sffamily " + text + "\\par}\\smallskip\n")


def _key_bar(look: Look) -> str:
    return f"\\keybar{{{look.colour}}}{{{tex(look.label)}}}"


def _key_line(look: Look) -> str:
    dash = "dashed" if look.is_dashed else "solid"
    return f"\\keyline{{{look.colour}}}{{{look.pgf_mark}}}{{{dash}}}{{{tex(look.label)}}}"


def ranked_bars(bars: Sequence[Bar], x_label: str, *, reference: float) -> str:
    """Horizontal bars, best first, values at their ends; bars without a value last."""
    ordered = sorted(bars, key=lambda bar: (bar.value is None, -(bar.value or 0.0)))
    figure = Figure()
    axes = figure.add_subplot()
    reach = max(reference, *(bar.reach for bar in bars))
    for row, bar in enumerate(ordered):
        y = -float(row)
        if bar.value is None:
            axes.text(0.01 * reach, y, bar.mark, va="center", ha="left", color=f"#{FAILURE_COLOUR}")
            continue
        axes.barh([y], [bar.value], height=0.68, color=f"#{bar.colour}")
        if bar.crossed_at is not None:
            axes.plot([bar.crossed_at] * 2, [y - 0.34, y + 0.34], color="black", linewidth=1.6)
        _draw_spread(axes, bar, y, is_horizontal=True)
        axes.text(bar.reach + 0.015 * reach, y, f"{number(bar.value)}\u00d7", va="center", ha="left")
    axes.plot([reference] * 2, [0.6, 0.4 - len(bars)], color="black", linestyle="--", linewidth=0.8)
    axes.set_xlim(0, reach * 1.12)
    axes.set_ylim(0.6 - len(bars), 0.6)
    axes.set_yticks([-float(row) for row in range(len(ordered))], [bar.label for bar in ordered])
    _set_number_ticks(axes, "x", reach)
    axes.set_xlabel(x_label)
    label_cm = min(MAX_LABEL_CM, 0.2 + CHARACTER_CM * max(len(bar.label) for bar in bars))
    return to_pgfplots(
        figure,
        width=f"{LINE_WIDTH_CM - label_cm - 0.6:.2f}cm",
        height=f"{BAR_HEIGHT_CM * len(bars) + 0.2:.2f}cm",
        options="ymajorgrids=false, y axis line style={draw=none}, ytick style={draw=none}, "
        f"yticklabel style={{text width={label_cm:.2f}cm, align=right}}",
    )


def grouped_bars(groups: Sequence[tuple[str, Sequence[Bar]]], y_label: str, *, reference: float) -> str:
    """Vertical bars in named groups of the same series; a bar without a value shows its word, upright."""
    figure = Figure()
    axes = figure.add_subplot()
    num_series = max(len(bars) for _, bars in groups)
    width = min(0.84 / num_series, MAX_BAR_CM * len(groups) / LINE_WIDTH_CM)
    reach = max(reference, *(bar.reach for _, bars in groups for bar in bars))
    for place, (_, bars) in enumerate(groups):
        for index, bar in enumerate(bars):
            x = place + (index - (num_series - 1) / 2) * width
            if bar.value is None:
                _write_upright(axes, x, 0.02 * reach, bar.mark)
                continue
            axes.bar([x], [bar.value], width=0.9 * width, color=f"#{bar.colour}")
            if bar.crossed_at is not None:
                ends = (x - 0.45 * width, x + 0.45 * width)
                axes.plot(ends, [bar.crossed_at] * 2, color="black", linewidth=1.6)
            _draw_spread(axes, bar, x, is_horizontal=False)
    ends = (-0.5, len(groups) - 0.5)
    axes.plot(ends, [reference] * 2, color="black", linestyle="--", linewidth=0.8)
    axes.set_xlim(*ends)
    axes.set_ylim(0, reach * 1.08)
    axes.set_xticks(range(len(groups)), [name for name, _ in groups])
    _set_number_ticks(axes, "y", reach)
    axes.set_ylabel(y_label)
    label_cm = 0.9 * (LINE_WIDTH_CM - 1.6) / len(groups)
    return to_pgfplots(
        figure,
        width=f"{LINE_WIDTH_CM - 1.6:.2f}cm",
        height="4.6cm",
        options=f"xtick style={{draw=none}}, xticklabel style={{text width={label_cm:.2f}cm, align=center, "
        "execute at begin node=\\strut}",
    )


def line_panels(panels: Sequence[Panel]) -> str:
    """Panels side by side, two in a row, each with its own axis that starts at 0."""
    pictures = [_boxed(_line_panel(panel)) for panel in panels]
    rows = [pictures[start : start + 2] for start in range(0, len(pictures), 2)]
    return "\\par\\medskip\n".join("\\hfill\n".join(row) for row in rows)


def _boxed(picture: str) -> str:
    return f"\\begin{{minipage}}[t]{{0.49\\linewidth}}\\centering\n{picture}\\end{{minipage}}"


def _line_panel(panel: Panel) -> str:
    figure = Figure()
    axes = figure.add_subplot()
    if panel.reference is not None:
        axes.plot(panel.ends, [panel.reference] * 2, color="black", linestyle=":", linewidth=0.8)
    for look, height in panel.levels:
        axes.plot(panel.ends, [height] * 2, color=f"#{look.colour}", linestyle="--", linewidth=1.2)
    for line in panel.lines:
        _draw_line(axes, line)
    for place in range(len(panel.ticks)):
        words = [word for line in panel.lines if (word := _gap_word(line, place))]
        if words:
            _write_upright(axes, place, 0.03 * panel.height, _in_one(words))
    axes.set_xlim(*panel.ends)
    axes.set_ylim(0, panel.height * 1.1)
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
        overhang_cm = 0.0
    else:
        overhang_cm = _set_number_ticks(axes, "x", panel.ends[1]) / 2  # the last one, half beyond the axis
    label_cm = _set_number_ticks(axes, "y", panel.height)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    width_cm = LINE_WIDTH_CM / 2 - 1.4 - label_cm - overhang_cm
    return to_pgfplots(figure, width=f"{width_cm:.2f}cm", height=f"{PANEL_CM}cm")


def _gap_word(line: Line, place: int) -> str | None:
    """What a line says where it has no value."""
    if place >= len(line.marks) or line.values[place] is not None or not line.marks[place]:
        return None
    return f"{line.look.label} {line.marks[place]}"


def _in_one(words: Sequence[str]) -> str:
    """The words of a place, or how many there are where they are longer than the axis is high."""
    text = ", ".join(words)
    is_short = len(words) == 1 or len(text) * CHARACTER_CM < PANEL_CM
    return text if is_short else f"{len(words)} without a number"


def _draw_line(axes: Axes, line: Line) -> None:
    """Each stretch without a gap as a plot of its own: pgfplots would draw straight across a gap."""
    stretches: list[list[tuple[float, float]]] = [[]]
    for point in line.points():
        if point is None:
            stretches.append([])
        else:
            stretches[-1].append(point)
    for stretch in stretches:
        if stretch:
            axes.plot(
                [x for x, _ in stretch],
                [y for _, y in stretch],
                color=f"#{line.look.colour}",
                marker=line.look.marker,
                markersize=4,
                linewidth=1.2,
                linestyle="--" if line.look.is_dashed else "-",
            )


def _draw_spread(axes: Axes, bar: Bar, place: float, *, is_horizontal: bool) -> None:
    """The whisker of a bar and the dots of its single values."""

    def across(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
        rows = [place] * len(values)
        return (values, rows) if is_horizontal else (rows, values)

    if bar.interval is not None:
        axes.plot(*across(bar.interval), color="black", linewidth=1.0)
    axes.plot(
        *across(bar.points),
        linestyle="none",
        marker="o",
        markersize=2.4,
        color=f"#{TEXT_COLOUR}",
        markerfacecolor="white",
        markeredgecolor=f"#{TEXT_COLOUR}",
    )


def _write_upright(axes: Axes, x: float, y: float, text: str) -> None:
    """Red text that runs upwards from (x, y); pgf turns a node about its anchor, here its left end."""
    axes.text(x, y, text, rotation=90, va="center", ha="left", color=f"#{FAILURE_COLOUR}")


def _set_number_ticks(axes: Axes, which: str, reach: float) -> float:
    """About five ticks from 0 at 1, 2 or 5 times a power of ten, all with the same digits.

    Returns the widest label's width in cm.
    """
    rough = reach / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    ticks = [step * index for index in range(int(reach * 1.05 / step) + 1)]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    labels = [number(tick, digits) for tick in ticks]
    getattr(axes, f"set_{which}ticks")(ticks, labels)
    return CHARACTER_CM * max(len(label) for label in labels)
