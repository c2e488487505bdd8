import json
import logging

import pytest
from synthetic import Shape, campaign_values, write_campaign

from draftbench.errors import ReportError
from draftbench.report.load import enumerate_names
from draftbench.report.results import load_results
from draftbench.report.summarise import summarise


@pytest.fixture
def small(tmp_path):
    """Files of a campaign with one tree budget."""

    def write(shape=None):
        return write_campaign(tmp_path / "small", campaign_values(budgets=(8,)), shape)

    return write


def test_a_missing_cell_ends_the_summary_with_its_name_and_what_to_do(small):
    paths = small(Shape(missing=frozenset({"tp1-dflash.long"})))
    with pytest.raises(ReportError, match=r"got none for tp1-dflash\.long; .*report/partial\.pdf"):
        load_results(*paths)


def test_a_partial_summary_keeps_the_hole_and_its_recorded_reason(small):
    shape = Shape(
        missing=frozenset({"tp1-dflash.long"}), failures={"tp1-ar.short": ("oom", "out of memory, 3 GB")}
    )
    loaded = load_results(*small(shape), is_partial=True)
    holes = {cell.plan.name: cell.failure for cell in loaded.cells if cell.result is None}
    assert holes["tp1-dflash.long"] is None
    assert holes["tp1-ar.short"].message == "out of memory, 3 GB"


def test_a_campaign_without_any_result_has_no_partial_summary(small):
    campaign_json, specs_json, results = small()
    for path in results.iterdir():
        path.unlink()
    with pytest.raises(ReportError, match="at least one result"):
        load_results(campaign_json, specs_json, results, is_partial=True)


def test_a_result_of_another_spec_is_refused_by_name(small):
    campaign_json, specs_json, results = small()
    specs = json.loads(specs_json.read_text())
    specs["tp1-ddtree-b8.long"]["seed"] = 8
    specs_json.write_text(json.dumps(specs))
    with pytest.raises(ReportError, match=r"another spec in tp1-ddtree-b8\.long; delete these files"):
        load_results(campaign_json, specs_json, results)


def test_a_partial_report_leaves_out_results_of_another_spec_and_names_them(small):
    campaign_json, specs_json, results = small()
    specs = json.loads(specs_json.read_text())
    specs["tp1-ddtree-b8.long"]["seed"] = 8
    specs_json.write_text(json.dumps(specs))
    loaded = load_results(campaign_json, specs_json, results, is_partial=True)
    assert [cell.plan.name for cell in loaded.cells if cell.result is None] == ["tp1-ddtree-b8.long"]
    assert loaded.unplanned_files == ["tp1-ddtree-b8.long.json"]


def test_results_of_other_client_code_are_used_and_named(small, caplog):
    paths = small(Shape(client_sha256={"tp1-ar.long": "a" * 64}))
    with caplog.at_level(logging.WARNING):
        loaded = load_results(*paths, client_sha256="c" * 64)
    assert loaded.stale_cells == ["tp1-ar.long"]
    assert "tp1-ar.long" in caplog.text


@pytest.mark.parametrize("content", ["", "{", '{"cell": "x"}', "[1, 2", "\udcff"], ids=repr)
def test_a_damaged_result_is_named_with_what_to_do(small, content):
    campaign_json, specs_json, results = small()
    (results / "tp1-ar.short.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ReportError, match=r"tp1-ar\.short\.json: .*delete the file to measure"):
        load_results(campaign_json, specs_json, results)


def test_a_result_under_another_cell_s_name_is_refused(small):
    campaign_json, specs_json, results = small()
    (results / "tp1-ar.short.json").write_bytes((results / "tp1-ar.long.json").read_bytes())
    with pytest.raises(ReportError, match=r"expected tp1-ar\.short, got tp1-ar\.long"):
        load_results(campaign_json, specs_json, results)


def test_files_of_no_cell_are_named_and_not_used(small):
    campaign_json, specs_json, results = small()
    (results / "tp1-old.short.json").write_text("{}")
    assert load_results(campaign_json, specs_json, results).unplanned_files == ["tp1-old.short.json"]


def test_the_summary_of_the_same_results_is_the_same_bytes(small, tmp_path):
    paths = small(Shape(diverging_methods=frozenset({"dflash"})))
    for name in ("one", "two"):
        summarise(*paths, tmp_path / name)
    for name in ("summary.json", "cells.csv", "requests.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_directory_in_place_of_a_result_is_refused_by_name(small):
    campaign_json, specs_json, results = small()
    path = results / "tp1-ar.short.json"
    path.unlink()
    path.mkdir()
    with pytest.raises(ReportError, match=r"tp1-ar\.short\.json: the file: expected a CellResult, got: "):
        load_results(campaign_json, specs_json, results)


def test_of_many_names_the_first_six_are_told_and_how_many_more_there_are():
    names = [str(place) for place in range(8)]
    assert enumerate_names(names[:6]) == "0, 1, 2, 3, 4, 5"
    assert enumerate_names(names[:7]) == "0, 1, 2, 3, 4, 5 and 1 more"
    assert enumerate_names(names) == "0, 1, 2, 3, 4, 5 and 2 more"
