"""The only user of tikzplotlib: a matplotlib figure in, a pgfplots fragment out.

tikzplotlib 0.10.1 is its last release and predates matplotlib 3.6 and webcolors 24; the names it
misses are supplied here. Its output has defects that no caller should know of: texts are not escaped
(or in three different ways), text is half its size, and its own colours and line styles override the
document's. So a figure is converted with placeholder words for
all its texts, the style options are dropped, and the escaped texts are put in afterwards.

Supported artists: `bar`, `barh`, `plot`, `axhline`, `axvline` and `text` in data coordinates. A legend is
text of the document (`charts.key`), where it can break into lines.
"""

import itertools
import re
import warnings
from typing import Any

import matplotlib as mpl
import webcolors
from matplotlib.axes import Axes
from matplotlib.backends import backend_pgf
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from draftbench.errors import ReportError
from draftbench.report.tex import tex

MATPLOTLIB_SIZE_PT = 10.0
"""Font size that the figures are designed with; \\footnotesize in the document."""

_STYLE_OPTIONS = re.compile(
    r"^(?:[xy] grid style|[xy]tick style|tick align|tick pos|[xy]tick pos|axis line style)\b"
)


def _supply_missing_names() -> None:
    """Give tikzplotlib the private names it was written against, each where a release removed it."""
    missing: list[tuple[Any, str, Any]] = [
        (backend_pgf, "common_texification", str),  # matplotlib 3.8; texts are placeholders here
        (mpl.axes, "Subplot", Axes),  # matplotlib 3.7 made it an alias
        (Line2D, "_us_dashSeq", property(lambda line: line._unscaled_dash_pattern[1])),  # matplotlib 3.6
        (Line2D, "_us_dashOffset", property(lambda line: line._unscaled_dash_pattern[0])),
        (webcolors, "CSS3_HEX_TO_NAMES", {}),  # webcolors 24; unnamed colours get a name of their numbers
    ]
    for owner, name, value in missing:
        if name not in dir(owner):
            setattr(owner, name, value)


_supply_missing_names()
import tikzplotlib  # noqa: E402  (it imports the names supplied above)
from tikzplotlib import _color  # noqa: E402


def _name_colour(rgb: Any) -> tuple[str, int]:
    """Name a colour by its numbers, separated: tikzplotlib's own run of digits is ambiguous."""
    return "rgb" + "x".join(str(int(value)) for value in rgb) + "n", 1


_color._get_closest_colour_name = _name_colour


class _Placeholders:
    """Words that every converter passes unchanged, and the texts they stand for."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def hold(self, text: str) -> str:
        word = f"dbtext{next(self._numbers):04d}x"
        self._texts[word] = "{" + tex(text) + "}"  # braces keep commas and brackets from pgfkeys
        return word

    def restore(self, code: str) -> str:
        return re.sub(r"dbtext\d{4}x", lambda match: self._texts[match.group()], code)


def to_pgfplots(figure: Figure, *, width: str, height: str, options: str = "") -> str:
    """One axis as a `tikzpicture`. Mutates the figure.

    Args:
        figure: with exactly one axes; its font sizes are relative to `MATPLOTLIB_SIZE_PT`.
        width: of the plot area, a TeX dimension.
        height: likewise.
        options: further pgfplots options, TeX.

    Raises:
        ReportError: a coordinate is not finite; the caller must leave the mark out or show a gap.
    """
    (axes,) = figure.axes
    placeholders = _Placeholders()
    _replace_texts(axes, placeholders)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mpl.MatplotlibDeprecationWarning)  # names that 3.12 will remove
        code = tikzplotlib.get_tikz_code(
            figure, axis_width=width, axis_height=height, float_format=".6g", include_disclaimer=False
        )
    code = _restyle(code, options)
    if re.search(r"\b(?:nan|inf)\b", code):
        raise ReportError("a figure has a coordinate that is not finite; expected null values to be left out")
    return placeholders.restore(code)


def _replace_texts(axes: Axes, placeholders: _Placeholders) -> None:
    axes.set_title(placeholders.hold(axes.get_title()) if axes.get_title() else "")
    for axis in (axes.xaxis, axes.yaxis):
        if axis.label.get_text():
            axis.label.set_text(placeholders.hold(axis.label.get_text()))
        labels = [label.get_text() for label in axis.get_ticklabels()]
        axis.set_ticks(list(axis.get_ticklocs()), [placeholders.hold(text) for text in labels])
    for text in axes.texts:
        _replace_text(text, placeholders)


def _replace_text(text: Text, placeholders: _Placeholders) -> None:
    text.set_text(placeholders.hold(text.get_text()))
    text.set_fontsize(2 * MATPLOTLIB_SIZE_PT)  # tikzplotlib halves it; 1.0 means the document's size


def _restyle(code: str, options: str) -> str:
    """Drop tikzplotlib's styles, put the document's in, and keep upright words readable across lines."""
    lines = [line for line in code.split("\n") if not _STYLE_OPTIONS.match(line.strip())]
    code = "\n".join(line for line in lines if line.strip())
    head = ", ".join(part for part in ("draftbench axis", options) if part)
    code = code.replace("rotate=90.0", "rotate=90, fill=white, inner sep=1pt")
    code = code.replace("\\begin{axis}[", f"\\begin{{axis}}[\n{head},", 1)
    code = re.sub(r",\s*\]", "\n]", code)
    return code.replace("\\begin{tikzpicture}", "\\begin{tikzpicture}[baseline]", 1) + "\n"
