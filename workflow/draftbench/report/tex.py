"""Text for LaTeX: the one escape function, and numbers as the report prints them."""

import math
import unicodedata
from typing import Any

DASH = "\u2013"
"""Stands where there is no number."""

_ASCII = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "_": r"\_",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # after \\ a bracket or an asterisk would be read as its argument
    "]": "{]}",
    "*": "{*}",
    "-": "-{}",  # two hyphens are two hyphens, not a dash
    ",": ",{}",  # two commas are a quotation mark in T1
}
_BEYOND_ASCII = {
    "\u00d7": r"\texttimes{}",
    "\u00b1": r"\textpm{}",
    "\u00b5": r"\textmu{}",
    "\u03bc": r"\textmu{}",
    "\u03c4": r"$\tau$",
    "\u00b0": r"\textdegree{}",
    "\u00b7": r"\textperiodcentered{}",
    "\u2192": r"$\rightarrow$",
    "\u2265": r"$\geq$",
    "\u2264": r"$\leq$",
    "\u2212": r"$-$",
    "\u2020": r"\textdagger{}",
    "\u2021": r"\textdaggerdbl{}",
    "\u2026": r"\ldots{}",
    "\u2013": r"\textendash{}",
    "\u2014": r"\textemdash{}",
    "\u2018": r"\textquoteleft{}",
    "\u2019": r"\textquoteright{}",
    "\u201c": r"\textquotedblleft{}",
    "\u201d": r"\textquotedblright{}",
    "\u20ac": r"\texteuro{}",
    "\u00a0": "~",
}

# Letters of Latin-1 and Latin Extended-A that LaTeX's T1 encoding does not set up.
_WITHOUT_GLYPH = frozenset({0x126, 0x127, 0x138, 0x13F, 0x140, 0x149, 0x166, 0x167})
MAX_RUN = 16
"""Characters without a place to break, at most, in text for narrow columns."""


class Raw(str):
    """Text that is LaTeX already."""

    __slots__ = ()


def tex(value: Any) -> str:
    """Escape anything for LaTeX's text mode; `Raw` passes unchanged.

    Every ASCII character prints as itself and control characters as a space. Beyond ASCII, what T1 fonts
    have is kept and any other character prints as its code point, so that no string can stop pdflatex.
    """
    if isinstance(value, Raw):
        return value
    return "".join(_escape(character) for character in unicodedata.normalize("NFC", str(value)))


def _escape(character: str) -> str:
    if character in _ASCII:
        return _ASCII[character]
    if character in _BEYOND_ASCII:
        return _BEYOND_ASCII[character]
    if unicodedata.category(character) in {"Cc", "Zl", "Zp"}:
        return " "
    code = ord(character)
    is_latin_letter = 0xC0 <= code <= 0x17E and unicodedata.category(character) in {"Lu", "Ll"}
    is_printable = code < 128 or (is_latin_letter and code not in _WITHOUT_GLYPH)
    return character if is_printable else f"U+{code:04X}"


def breakable(value: Any) -> Raw:
    """Escaped text that fits any column: it may break after punctuation and inside very long words."""
    parts = []
    run = 0
    for character in unicodedata.normalize("NFC", str(value)):
        parts.append(_escape(character))
        run = 0 if character.isspace() else run + 1
        if character in "_-/.:=,;@" or run >= MAX_RUN:
            parts.append(r"\allowbreak{}")
            run = 0
    return Raw("".join(parts))


def number(value: float | None, digits: int = 2) -> str:
    """Fixed digits with thin spaces between thousands; a dash for null."""
    if value is None:
        return DASH
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number or null, got {value}; undefined is null in every record")
    return f"{value:,.{digits}f}".replace(",", "\u00a0")


def significant(value: float | None, digits: int = 3) -> str:
    """About `digits` significant digits without an exponent, for quantities of any scale."""
    if value is None or value == 0:
        return number(value, 0)
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return number(value, places)


def percent(share: float | None, digits: int = 0) -> str:
    """A share as a percentage with its sign; a dash for null."""
    return DASH if share is None else f"{share * 100:.{digits}f}\u00a0%"


def count(number_of: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `1 prompt`, `5 prompts`."""
    return f"{number_of} {noun if number_of == 1 else plural or noun + 's'}"
