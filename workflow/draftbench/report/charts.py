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
LINE_WIDTH_CM = 16.0


@dataclass(frozen=True)
class Bar:
    """One bar of a chart.

    Attributes:
        label: its name, beside or below it.
        value: its length; None shows `mark` instead.
        interval: whisker; None draws none.
        points: single values behind it, drawn as dots.
        colour: six hexadecimal digits.
        mark: the word in place of a value.
    """

    label: str
    value: float | None
    interval: tuple[float, float] | None
    points: tuple[float, ...]
    colour: str
    mark: str


@dataclass(frozen=True)
class Line:
    """One line of a chart; a null value is a gap.

    Attributes:
        look: of its method.
        values: y by x position.
        marks: the word for each gap, by x position; empty where there is none.
    """

    look: Look
    values: tuple[float | None, ...]
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Panel:
    """A chart with lines.

    Attributes:
        title, x_label, y_label: texts.
        ticks: names of the x positions.
        lines: drawn in order.
        reference: height of a dashed line, or None.
        levels: (look, height) drawn as lines over the whole width.
    """

    title: str
    x_label: str
    y_label: str
    ticks: tuple[str, ...]
    lines: tuple[Line, ...]
    reference: float | None = None
    levels: tuple[tuple[Look, float], ...] = ()


def key(looks: Sequence[Look], *, with_lines: bool) -> Raw:
    """A legend as centred text that may break between its entries."""
    entries = [
        f"\\keyline{{{look.colour}}}{{{look.pgf_mark}}}{{{'dashed' if look.is_dashed else 'solid'}}}{{{tex(look.label)}}}"
        if with_lines
        else f"\\keybar{{{look.colour}}}{{{tex(look.label)}}}"
        for look in looks
    ]
    return Raw("{\\centering\\footnotesize\\sffamily " + "\\quad ".join(entries) + "\\par}\\smallskip\n")


def ranked_bars(bars: Sequence[Bar], x_label: str, reference: float | None) -> str:
    """Horizontal bars, best first, values at their ends; bars without a value last."""
    ordered = sorted(bars, key=lambda bar: (bar.value is None, -(bar.value or 0.0)))
    figure = Figure()
    axes = figure.add_subplot()
    reach = max([_reach(bar) for bar in bars] + [reference or 0.0])
    for row, bar in enumerate(ordered):
        y = -float(row)
        if bar.value is None:
            axes.text(0.01 * reach, y, bar.mark, va="center", ha="left", color=f"#{FAILURE_COLOUR}")
            continue
        axes.barh([y], [bar.value], height=0.68, color=f"#{bar.colour}")
        _whisker(axes, bar.interval, y, is_horizontal=True)
        axes.plot(bar.points, [y] * len(bar.points), **_dots())
        axes.text(_reach(bar) + 0.015 * reach, y, f"{number(bar.value)}\u00d7", va="center", ha="left")
    if reference is not None:
        axes.plot([reference] * 2, [0.6, 0.4 - len(bars)], color="black", linestyle="--", linewidth=0.8)
    axes.set_xlim(0, reach * 1.12)
    axes.set_ylim(0.6 - len(bars), 0.6)
    axes.set_yticks([-float(row) for row in range(len(ordered))], [bar.label for bar in ordered])
    _nice_ticks(axes, "x", reach)
    axes.set_xlabel(x_label)
    label_cm = min(MAX_LABEL_CM, 0.2 + CHARACTER_CM * max(len(bar.label) for bar in bars))
    return to_pgfplots(
        figure,
        width=f"{LINE_WIDTH_CM - label_cm - 0.6:.2f}cm",
        height=f"{BAR_HEIGHT_CM * len(bars) + 0.2:.2f}cm",
        options=f"ymajorgrids=false, y axis line style={{draw=none}}, ytick style={{draw=none}}, "
        f"yticklabel style={{text width={label_cm:.2f}cm, align=right}}",
    )


def grouped_bars(groups: Sequence[tuple[str, Sequence[Bar]]], y_label: str, reference: float | None) -> str:
    """Vertical bars in named groups of the same series; a bar without a value shows its word, upright."""
    figure = Figure()
    axes = figure.add_subplot()
    num_series = max(len(bars) for _, bars in groups)
    width = 0.84 / num_series
    reach = max([_reach(bar) for _, bars in groups for bar in bars] + [reference or 0.0])
    for place, (_, bars) in enumerate(groups):
        for index, bar in enumerate(bars):
            x = place + (index - (num_series - 1) / 2) * width
            if bar.value is None:
                axes.text(x, 0.02 * reach, bar.mark, rotation=90, va="bottom", color=f"#{FAILURE_COLOUR}")
                continue
            axes.bar([x], [bar.value], width=0.9 * width, color=f"#{bar.colour}")
            _whisker(axes, bar.interval, x, is_horizontal=False)
            axes.plot([x] * len(bar.points), bar.points, **_dots())
    if reference is not None:
        axes.plot([-0.5, len(groups) - 0.5], [reference] * 2, color="black", linestyle="--", linewidth=0.8)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_ylim(0, reach * 1.08)
    axes.set_xticks(range(len(groups)), [name for name, _ in groups])
    _nice_ticks(axes, "y", reach)
    axes.set_ylabel(y_label)
    group_cm = (LINE_WIDTH_CM - 1.6) / len(groups)
    return to_pgfplots(
        figure,
        width=f"{LINE_WIDTH_CM - 1.6:.2f}cm",
        height="4.6cm",
        options=f"xtick style={{draw=none}}, xticklabel style={{text width={0.9 * group_cm:.2f}cm, align=center}}",
    )


def line_panels(panels: Sequence[Panel]) -> str:
    """Panels side by side, two in a row, each with its own axis that starts at 0."""
    width_cm = LINE_WIDTH_CM / 2 - 1.9
    pictures = [_line_panel(panel, width_cm) for panel in panels]
    rows = [pictures[start : start + 2] for start in range(0, len(pictures), 2)]
    return "\\par\\medskip\n".join("\\hfill\n".join(_boxed(picture) for picture in row) for row in rows)


def _boxed(picture: str) -> str:
    return f"\\begin{{minipage}}[t]{{0.49\\linewidth}}\\centering\n{picture}\\end{{minipage}}"


def _line_panel(panel: Panel, width_cm: float) -> str:
    figure = Figure()
    axes = figure.add_subplot()
    places = list(range(len(panel.ticks)))
    heights = [value for line in panel.lines for value in line.values if value is not None]
    heights += [height for _, height in panel.levels]
    reach = max([*heights, panel.reference or 0.0, 1e-9])
    ends = [-0.3, len(places) - 0.7]
    if panel.reference is not None:
        axes.plot(ends, [panel.reference] * 2, color="black", linestyle=":", linewidth=0.8)
    for look, height in panel.levels:
        axes.plot(ends, [height] * 2, color=f"#{look.colour}", linestyle="--", linewidth=1.2)
    for line in panel.lines:
        _draw_line(axes, line)
    for place in places:
        words = [f"{line.look.label} {line.marks[place]}" for line in panel.lines if _has_mark(line, place)]
        if words:
            text = ", ".join(words)
            axes.text(
                place, 0.03 * reach, text, rotation=90, ha="left", va="bottom", color=f"#{FAILURE_COLOUR}"
            )
    axes.set_xlim(*ends)
    axes.set_ylim(0, reach * 1.1)
    axes.set_xticks(places, panel.ticks)
    _nice_ticks(axes, "y", reach)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    return to_pgfplots(figure, width=f"{width_cm:.2f}cm", height="4.2cm")


def _has_mark(line: Line, place: int) -> bool:
    return line.values[place] is None and place < len(line.marks) and bool(line.marks[place])


def _draw_line(axes: Axes, line: Line) -> None:
    """Each stretch without a gap as a plot of its own: pgfplots would draw straight across a gap."""
    defined = [place for place, value in enumerate(line.values) if value is not None]
    stretches: list[list[int]] = []
    for place in defined:
        if stretches and stretches[-1][-1] == place - 1:
            stretches[-1].append(place)
        else:
            stretches.append([place])
    for stretch in stretches:
        axes.plot(
            stretch,
            [line.values[place] for place in stretch],
            color=f"#{line.look.colour}",
            marker=line.look.marker,
            markersize=4,
            linewidth=1.2,
            linestyle="--" if line.look.is_dashed else "-",
        )


def _reach(bar: Bar) -> float:
    return max([bar.value or 0.0, *bar.points, *(bar.interval or ())])


def _whisker(axes: Axes, interval: tuple[float, float] | None, place: float, *, is_horizontal: bool) -> None:
    if interval is None:
        return
    along, across = list(interval), [place, place]
    axes.plot(*((along, across) if is_horizontal else (across, along)), color="black", linewidth=1.0)


def _dots() -> dict[str, object]:
    return {
        "linestyle": "none",
        "marker": "o",
        "markersize": 2.4,
        "color": f"#{TEXT_COLOUR}",
        "markerfacecolor": "white",
        "markeredgecolor": f"#{TEXT_COLOUR}",
    }


def _nice_ticks(axes: Axes, which: str, reach: float) -> None:
    """About five ticks from 0 at 1, 2 or 5 times a power of ten, all with the same digits."""
    rough = reach / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    ticks = [step * index for index in range(int(reach * 1.05 / step) + 1)]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    labels = [number(tick, digits) for tick in ticks]
    getattr(axes, f"set_{which}ticks")(ticks, labels)
