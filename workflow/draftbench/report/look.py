"""Colours and marks: a method looks the same in every figure.

Okabe and Ito's hues: grey for the baseline, blue for DFlash, orange for DDTree, darker with the budget.
The marker repeats what the colour says, for print and for readers who see no colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.report.summary import Summary

FAILURE_COLOUR = "B2182B"
TEXT_COLOUR = "333333"
PALE_BLUE = "56B4E9"
_RAMPS = {
    "ar": ("666666", "999999"),
    "dflash": ("0072B2", PALE_BLUE),
    "ddtree": ("F5B971", "7A3300"),
}
_MARKS = {
    "ar": ("o",),
    "dflash": ("s", "D"),
    "ddtree": ("^", "v", "D", "p", "<", ">"),
}
_PGF_MARKS = {
    "o": "*",
    "s": "square*",
    "D": "diamond*",
    "^": "triangle*",
    "v": "triangle*",
    "p": "pentagon*",
    "<": "triangle*",
    ">": "triangle*",
}
_PGF_ROTATIONS = {"v": 180, "<": 90, ">": 270}


@dataclass(frozen=True)
class Look:
    """How a method is drawn.

    Attributes:
        label: its name in figures and tables.
        colour: six hexadecimal digits.
        marker: matplotlib's marker.
        is_dashed: whether its lines are dashed.
    """

    label: str
    colour: str
    marker: str
    is_dashed: bool

    @property
    def pgf_mark(self) -> str:
        """The same marker as options of a pgf plot."""
        rotation = _PGF_ROTATIONS.get(self.marker, 0)
        return f"mark={_PGF_MARKS[self.marker]}, mark options={{solid, rotate={rotation}}}"


def looks(summary: Summary) -> dict[str, Look]:
    """Method name -> look, for all methods of a campaign."""
    drawn: dict[str, Look] = {}
    for algorithm, ramp in _RAMPS.items():
        family = sorted(
            (method for method in summary.methods if method.algorithm == algorithm),
            key=lambda method: method.budget or 0,
        )
        for index, method in enumerate(family):
            share = index / (len(family) - 1) if len(family) > 1 else 0.0
            marks = _MARKS[algorithm]
            drawn[method.name] = Look(
                method.label, _mix(ramp, share), marks[index % len(marks)], algorithm == "dflash"
            )
    return {method.name: drawn[method.name] for method in summary.methods}


def _mix(ramp: Sequence[str], share: float) -> str:
    """A colour between two, `share` of the way."""
    ends = [[int(colour[i : i + 2], 16) for i in (0, 2, 4)] for colour in ramp]
    return "".join(f"{round(a + (b - a) * share):02X}" for a, b in zip(*ends, strict=True))
