"""Several requests at once: their tails, their steady speed, and how far the numbers reach."""

import json
import math

import numpy as np
import pytest
from synthetic import Shape, campaign_values, write_campaign
from test_summarise import find

from draftbench.report.draw import FigureList
from draftbench.report.loads import reach_sentence, steady_ratio, waits_sentence
from draftbench.report.summarise import summarise
from draftbench.report.view import View

SETTING = ("small", 1)
LOADED = {"workload": "concurrency-8"}


@pytest.fixture
def many(tmp_path):
    """A campaign whose runs at 8 in flight have gaps enough for a p99; (summary, directory of results)."""
    values = campaign_values(budgets=())
    values["workloads"]["concurrency-8"] |= {"max_tokens": 200}
    paths = write_campaign(tmp_path / "c", values)
    return summarise(*paths, tmp_path / "build"), paths[2]


def test_the_tails_are_those_of_all_requests(many):
    summary, results = many
    requests = json.loads((results / "tp1-dflash.concurrency-8.json").read_text())["requests"]
    gaps = [
        math.fsum((later["time_s"], -earlier["time_s"]))
        for request in requests
        for earlier, later in zip(request["chunks"], request["chunks"][1:], strict=False)
    ]
    row = find(summary.loads, method="dflash", **LOADED)
    assert len(gaps) >= 662
    assert row.chunk_gap_p99_s == pytest.approx(np.quantile(gaps, 0.99))
    assert row.ttft_max_s == max(request["ttft_s"] for request in requests)


def test_few_gaps_have_no_p99(summarised):
    row = find(summarised(budgets=()).loads, method="dflash", workload="concurrency-1")
    assert row.chunk_gap_p99_s is None
    assert row.ttft_max_s is not None


def test_the_longest_waits_at_the_most_requests_in_flight_stand_beside_the_gain(many):
    summary, _ = many
    ours, theirs = (find(summary.loads, method=name, **LOADED) for name in ("dflash", "ar"))
    said = waits_sentence(summary, SETTING, "dflash")
    steady = ours.steady_tok_per_s / theirs.steady_tok_per_s
    begin = f"At 8 it is {steady:.2f} while all slots are decoding, and the longest time to a first token is "
    assert said.startswith(begin)
    unsteady = [row.model_copy(update={"steady_tok_per_s": None}) for row in summary.loads]
    without = summary.model_copy(update={"loads": unsteady})
    assert waits_sentence(without, SETTING, "dflash").startswith("At 8 the longest time to a first token is ")
    for seconds in (ours.ttft_max_s, ours.chunk_gap_p99_s, theirs.chunk_gap_p99_s):
        assert f"{1000 * seconds:.3g}" in said
    assert View(summary, FigureList(figures=[])).load_sentence(SETTING).endswith(said)


def test_waits_are_told_only_beside_those_of_the_baseline(summarised):
    shape = Shape(missing=frozenset({"tp1-ar.concurrency-8"}))
    summary = summarised(shape, is_partial=True, budgets=())
    assert waits_sentence(summary, SETTING, "dflash") == ""
    assert waits_sentence(summary, SETTING, "another") == ""


def test_the_longest_wait_of_more_sessions_is_not_set_beside_that_of_fewer(summarised):
    for missing, is_told in (((), True), (("tp1-ar-s2.concurrency-8",), False)):
        summary = summarised(Shape(missing=frozenset(missing)), is_partial=True, sessions=2, budgets=())
        assert bool(waits_sentence(summary, SETTING, "dflash")) is is_told


def test_the_steady_ratio_is_that_of_the_steady_speeds_where_there_is_a_speedup(many):
    summary, _ = many
    ours, theirs = (find(summary.loads, method=name, **LOADED) for name in ("dflash", "ar"))
    ratio = steady_ratio(summary, ours)
    assert ratio == pytest.approx(ours.steady_tok_per_s / theirs.steady_tok_per_s)
    compared = find(summary.comparisons, method="dflash", **LOADED)
    faulty = compared.model_copy(update={"evidence": None, "mark": "fault"})
    assert steady_ratio(summary.model_copy(update={"comparisons": [faulty]}), ours) is None


def test_a_steady_ratio_is_of_the_same_sessions_only(summarised):
    shape = Shape(missing=frozenset({"tp1-ar-s2.concurrency-8"}))
    summary = summarised(shape, is_partial=True, sessions=2, budgets=())
    row = find(summary.loads, method="dflash", **LOADED)
    assert (row.num_sessions, find(summary.comparisons, method="dflash", **LOADED).evidence.num_sessions) == (
        2,
        1,
    )
    assert steady_ratio(summary, row) is None


def test_the_measured_loads_are_named_and_nothing_is_said_of_more(summarised):
    shape = Shape(missing=frozenset(f"tp1-{name}.concurrency-8" for name in ("ar", "dflash")))
    said = reach_sentence(summarised(shape, is_partial=True, budgets=()))
    assert said.startswith("Measured: 1, 2 and 4 in flight")
