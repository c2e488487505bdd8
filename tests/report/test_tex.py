import string
import subprocess

import pytest

from draftbench.report.tex import Raw, breakable, count, number, percent, significant, tex

PREAMBLE = r"""\documentclass{article}\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}
\usepackage{textcomp,lmodern}\pagestyle{empty}\setlength{\parindent}{0pt}\begin{document}\sloppy
"""
PRINTABLE = "".join(chr(code) for code in range(33, 127))
PAIRS = "-- --- ,, `` '' << >> ?` !` \\\\[1ex] \\\\* $x$ #1 {a} ~/ 100% a_b x^2"


def typeset_text(directory, body):
    (directory / "text.tex").write_text(PREAMBLE + body + "\n\\end{document}\n", encoding="utf-8")
    subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "text.tex"],
        cwd=directory,
        check=True,
        capture_output=True,
        timeout=60,
    )
    run = subprocess.run(
        ["pdftotext", "-layout", "text.pdf", "-"], cwd=directory, check=True, capture_output=True, timeout=60
    )
    return "".join(run.stdout.decode().split())


@pytest.mark.usefixtures("needs_tex")
@pytest.mark.parametrize("escape", [tex, breakable])
def test_every_ascii_character_and_every_ligature_prints_as_itself(tmp_path, escape):
    lines = [PRINTABLE[start : start + 30] for start in range(0, len(PRINTABLE), 30)] + [PAIRS]
    printed = typeset_text(tmp_path, "\n\n".join(escape(line) for line in lines))
    assert printed == "".join("".join(lines).split())


@pytest.mark.usefixtures("needs_tex")
def test_no_character_of_unicode_stops_pdflatex(tmp_path):
    codes = [*range(0x00, 0x600), *range(0x2000, 0x2300), 0x4E2D, 0x1F600, 0xFEFF, 0x10FFFF]
    text = " ".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    assert "U+1F600" in typeset_text(tmp_path, tex(text))


def test_control_characters_become_spaces():
    assert tex("a\x07b\nc\td") == "a b c d"


def test_raw_text_passes_unchanged():
    assert tex(Raw(r"\textbf{x}")) == r"\textbf{x}"


def test_a_long_word_may_break():
    assert breakable("x" * 100).count(r"\allowbreak{}") >= 5
    assert string.ascii_letters not in breakable(string.ascii_letters)


@pytest.mark.parametrize(
    ("value", "printed"),
    [(None, "\u2013"), (0, "0"), (1234.5, "1\u00a0234"), (0.0123, "0.0123"), (2.5, "2.50"), (100.0, "100")],
)
def test_three_significant_digits_at_any_scale(value, printed):
    assert significant(value) == printed


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_never_printed(value):
    with pytest.raises(ValueError, match="finite"):
        number(value)


def test_percentages_and_counts():
    assert percent(0.256) == "26\u00a0%"
    assert percent(None) == "\u2013"
    assert [count(n, "session") for n in (0, 1, 2)] == ["0 sessions", "1 session", "2 sessions"]
