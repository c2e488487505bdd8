import math
import re

import pytest
from matplotlib.figure import Figure

from draftbench.errors import ReportError
from draftbench.report.charts import Bar, Line, Panel, grouped_bars, key, line_panels, ranked_bars
from draftbench.report.look import Look
from draftbench.report.pgf import to_pgfplots

HOSTILE = "100%_a&b#c{d}~e^f\\g$h,i[j]"
ESCAPED = r"100\%\_a\&b\#c\{d\}\textasciitilde{}e\textasciicircum{}f\textbackslash{}g\$h,{}i{[}j{]}"
LOOK = Look("DFlash", "0072B2", "s", is_dashed=True)


def test_every_text_of_a_figure_is_escaped_once():
    figure = Figure()
    axes = figure.add_subplot()
    axes.bar([0], [1])
    axes.text(0, 0.5, HOSTILE)
    axes.set_xticks([0], [HOSTILE])
    axes.set_yticks([0, 1], ["0", "1"])
    axes.set_xlabel(HOSTILE)
    axes.set_ylabel(HOSTILE)
    axes.set_title(HOSTILE)
    code = to_pgfplots(figure, width="5cm", height="3cm")
    assert code.count("{" + ESCAPED + "}") == 5
    assert "dbtext" not in code


def test_a_coordinate_that_is_not_finite_is_refused():
    figure = Figure()
    figure.add_subplot().plot([0, 1], [1, math.nan])
    with pytest.raises(ReportError, match="not finite"):
        to_pgfplots(figure, width="5cm", height="3cm")


def test_a_bar_without_a_value_shows_its_word_and_has_no_length():
    code = ranked_bars(
        [Bar("DFlash", 2.0, "0072B2"), Bar("DDTree-64", None, "7A3300", mark="OOM")], "x", reference=1.0
    )
    assert "{OOM}" in code
    assert code.count("rectangle") == 1
    grouped = grouped_bars([("long", [Bar("a", None, "0072B2", mark="timeout")])], "y", reference=1.0)
    assert "{timeout}" in grouped
    assert "rectangle" not in grouped


def test_bars_are_sorted_by_value_with_the_missing_ones_last():
    bars = [Bar("slow", 1.0, "000000"), Bar("none", None, "000000", mark="n/r"), Bar("fast", 3.0, "000000")]
    code = ranked_bars(bars, "x", reference=1.0)
    assert code.index("{fast}") < code.index("{slow}") < code.index("{none}")


def test_a_second_value_is_a_line_across_its_bar_that_the_axis_reaches():
    def code(chart, crossed_at):
        bar = Bar("a", 1.0, "000000", crossed_at=crossed_at)
        return chart([bar] if chart is ranked_bars else [("g", [bar])], "x", reference=1.0)

    for chart, axis in ((ranked_bars, "xmax"), (grouped_bars, "ymax")):
        assert code(chart, 7.0).count("\\addplot") == code(chart, None).count("\\addplot") + 1
        assert float(re.search(rf"{axis}=([\d.]+)", code(chart, 7.0)).group(1)) > 7.0


def test_a_whisker_is_drawn_only_where_there_is_an_interval():
    def num_plots(bar):
        return ranked_bars([bar], "x", reference=1.0).count("\\addplot")

    assert num_plots(Bar("a", 2.0, "000000", interval=(1.5, 2.5))) == num_plots(Bar("a", 2.0, "000000")) + 1


def test_a_line_is_not_drawn_across_a_gap_and_the_gap_says_why():
    line = Line(LOOK, (1.0, 2.0, None, 4.0), ("", "", "OOM", ""))
    whole = Line(LOOK, (1.0, 2.0, 3.0, 4.0))
    panels = [Panel("x", "y", ("1", "2", "4", "8"), (one,)) for one in (line, whole)]
    with_gap, without = (line_panels([panel]) for panel in panels)
    assert with_gap.count("\\addplot") == without.count("\\addplot") + 1
    assert "DFlash OOM" in with_gap


def test_two_colours_with_the_same_digits_are_two_names():
    figure = Figure()
    axes = figure.add_subplot()
    axes.bar([0], [1], color="#010B01")
    axes.bar([1], [1], color="#0B0101")
    code = to_pgfplots(figure, width="5cm", height="3cm")
    names = re.findall(r"fill=(\w+)", code)
    assert len(set(names)) == len(names) == 2


def test_a_legend_escapes_its_labels():
    assert ESCAPED in key([Look(HOSTILE, "0072B2", "s", is_dashed=False)], with_lines=True)


def test_many_words_at_one_place_are_counted():
    looks = [Look(f"method {n}", "0072B2", "s", is_dashed=False) for n in range(3)]
    lines = [Line(looks[0], (1.0, 2.0)), *(Line(look, (None, 1.0), ("n/r", "")) for look in looks[1:])]
    two = line_panels([Panel("x", "y", ("1", "2"), tuple(lines))])
    assert "2 without a number" in two
    assert "n/r" not in two
    one = line_panels([Panel("x", "y", ("1", "2"), tuple(lines[:2]))])
    assert "method 1 n/r" in one


@pytest.mark.parametrize(("num", "lengths"), [(1, [1]), (6, [6]), (7, [4, 3]), (8, [4, 4]), (13, [5, 5, 3])])
def test_a_legend_of_several_rows_leaves_no_entry_alone(num, lengths):
    looks = [Look(f"method {n}", "0072B2", "s", is_dashed=False) for n in range(num)]
    rows = key(looks, with_lines=True).split("\\\\\n")
    assert [row.count("\\keyline") for row in rows] == lengths
