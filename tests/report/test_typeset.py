import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import Shape, campaign_values, write_campaign

from draftbench.errors import ReportError
from draftbench.report.typeset import typeset

ROOT = Path(__file__).resolve().parent.parent.parent
HOSTILE = "CUDA: 100% of_memory & #3 {a} ~b ^c \\d $e <f> `g` 'h' \u4e2d\x07 -- " + "x" * 90
LONG_METHOD = "ddtree-with-a-very-long-name-and-many-more-words-b24"


def build(directory, values, shape, hash_seed="0"):
    """All three scripts, as the workflow calls them; returns the PDF's path."""
    campaign_json, specs_json, results = write_campaign(directory, values, shape)
    out = directory / "build"
    inputs = ["--campaign-json", campaign_json, "--specs-json", specs_json, "--results", results]
    outputs = ["--out", directory / "bench.pdf", "--log", directory / "bench.log"]
    figures = out / "figures"
    for arguments in (
        ["summarise.py", *inputs, "--out", out, "--partial"],
        ["figures.py", "--summary", out, "--out", figures],
        ["typeset.py", "--summary", out, "--figures", figures, "--templates", ROOT / "report", *outputs],
    ):
        run = subprocess.run(
            [sys.executable, ROOT / "scripts" / arguments[0], *arguments[1:]],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert "without defects" not in run.stderr, run.stderr
    return directory / "bench.pdf"


def text_of(pdf):
    run = subprocess.run(["pdftotext", "-layout", pdf, "-"], check=True, capture_output=True, timeout=60)
    return run.stdout.decode()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A report of several sessions with every kind of failure, long names and hostile strings."""
    values = campaign_values(
        budgets=(8, 64), sessions=2, extra_methods={LONG_METHOD: {"algorithm": "ddtree", "budget": 24}}
    )
    values["description"] = "50% of R&D_costs, \\section{x} ~ #1"
    values["adaptive"] = {"half_width": 0.01, "max_sessions": 2}
    for name in ("short", "agentic-pipeline", "concurrency-2", "concurrency-4"):
        del values["workloads"][name]
    failures = {
        f"tp1-ddtree-b64{s}.{w}": ("oom", HOSTILE) for s in ("", "-s2") for w in ("long", "concurrency-8")
    }
    shape = Shape(
        missing=frozenset({"tp1-dflash.long"}),
        failures=failures,
        failed_requests={"tp1-dflash.very-long": (1, HOSTILE)},
        violations={"tp1-ddtree-b8.very-long": ["server-restarted"]},
        flags={"tp1-ar.long": [HOSTILE]},
        diverging_methods=frozenset({"ddtree-b8"}),
        client_sha256={"tp1-ar.very-long": "a" * 64},
    )
    return values, shape, build(tmp_path_factory.mktemp("hostile"), values, shape)


pytestmark = pytest.mark.usefixtures("needs_tex")


def test_failures_and_hostile_strings_do_not_stop_the_report(hostile):
    text = " ".join(text_of(hostile[2]).split())
    for words in (
        "Partial report",
        "a result is missing",
        "1. Summary",
        "2. Setup and method",
        "3. Single-request speed",
        "4. Draft budget and acceptance",
        "5. Agentic sessions",
        "6. Concurrency and scaling",
        "A. All cells",
        "50% of R&D_costs, \\section{x} ~ #1",
        "CUDA: 100% of_memory & #3 {a} ~b ^c \\d $e <f> `g` 'h' U+4E2D --",
        "OOM",
        "server-restarted",
        "Measured by other client code than today",
    ):
        assert words in text, words


def test_no_undefined_reference_nan_or_null_is_printed(hostile):
    text = text_of(hostile[2])
    assert not re.search(r"\?\?|\bnan\b|\bNone\b|\bnull\b|dbtext", text)


def test_the_same_results_give_the_same_pdf_byte_for_byte(hostile, tmp_path):
    values, shape, pdf = hostile
    again = build(tmp_path / "elsewhere", values, shape, hash_seed="7")
    assert again.read_bytes() == pdf.read_bytes()


def test_a_campaign_with_one_workload_and_no_trees_has_no_empty_parts(tmp_path):
    values = campaign_values(budgets=())
    values["workloads"] = {"long": values["workloads"]["long"]}
    text = " ".join(text_of(build(tmp_path / "one", values, Shape())).split())
    assert "This campaign has no agentic workload." in text
    assert "This campaign has no concurrency workload." in text
    assert "The campaign has one TP size" in text
    assert "Partial report" not in text


def test_all_methods_of_the_mission_fit_on_the_page(tmp_path):
    """Also with every number marked: two settings, two sessions, some missing, on two machines, and loops."""
    values = campaign_values(budgets=(8, 12, 15, 16, 32, 64), sessions=2, tps=(1, 2))
    missing = frozenset({f"tp{tp}-ar-s2.{name}" for tp in (1, 2) for name in ("long", "concurrency-8")})
    shape = Shape(missing=missing, boots={"tp1-ar": "other", "tp2-ar": "other"}, loop_from=20)
    text = text_of(build(tmp_path / "all", values, shape))
    for method in ("DFlash", *(f"DDTree-{budget}" for budget in (8, 12, 15, 16, 32, 64))):
        assert method in text


def test_several_settings_are_overseen_in_one_table(tmp_path):
    values = campaign_values(budgets=(), tps=(1, 2, 4))
    values["workloads"] = {name: values["workloads"][name] for name in ("long", "concurrency-8")}
    text = " ".join(text_of(build(tmp_path / "many", values, Shape())).split())
    assert "Of 3 settings (model and TP size) the fastest drafting method is known within one session" in text
    assert "TP 4" in text


def fake_latexmk(directory, log, exit_code):
    """A latexmk that only leaves a log."""
    program = directory / "bin" / "latexmk"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\ncat > report.log <<'END'\n{log}\nEND\necho x > report.pdf\nexit {exit_code}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{program.parent}:{os.environ['PATH']}"


@pytest.fixture
def typeset_with(hostile, tmp_path, monkeypatch):
    """Typeset the hostile report's summary under another PATH."""

    def run(path):
        monkeypatch.setenv("PATH", path)
        built = hostile[2].parent / "build"
        typeset(
            built / "summary.json",
            built / "figures",
            ROOT / "report",
            tmp_path / "x.pdf",
            log=tmp_path / "x.log",
        )

    return run


def test_without_tex_one_sentence_names_the_packages(typeset_with, tmp_path):
    with pytest.raises(
        ReportError, match=r"expected pdflatex and latexmk on PATH.*apt-get install .*lmodern"
    ):
        typeset_with(str(tmp_path))


def test_a_missing_style_is_named_with_the_packages(typeset_with, tmp_path):
    path = fake_latexmk(tmp_path, "! LaTeX Error: File `pgfplots.sty' not found.", 12)
    with pytest.raises(ReportError, match=r"expected pgfplots\.sty .*apt-get install .*texlive-pictures"):
        typeset_with(path)


@pytest.mark.parametrize(
    "defect",
    [
        "Overfull \\hbox (3.2pt too wide) in paragraph at lines 3--4",
        "Missing character: There is no X in font ecrm1000!",
        "LaTeX Warning: Reference `x' on page 1 undefined on input line 9.",
    ],
    ids=["overfull", "missing character", "undefined reference"],
)
def test_a_document_with_a_defect_is_written_with_a_warning(typeset_with, tmp_path, caplog, defect):
    typeset_with(fake_latexmk(tmp_path, defect, 0))
    assert f"x.log: expected a document without defects, got 1, first: {defect}" in caplog.text
    assert (tmp_path / "x.pdf").exists()


def test_a_failed_run_points_to_the_log_with_tex_s_own_words(typeset_with, tmp_path):
    path = fake_latexmk(tmp_path, "! Undefined control sequence.", 12)
    with pytest.raises(ReportError, match=r"x\.log: .*Undefined control sequence"):
        typeset_with(path)
