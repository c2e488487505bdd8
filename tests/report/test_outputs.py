import json

from synthetic import Shape, campaign_values, make_result, write_campaign
from test_summarise import find

from draftbench.config import Campaign, cells
from draftbench.report.group import pair_requests
from draftbench.report.summarise import summarise


def test_equal_outputs_are_counted_as_equal_in_every_kind_of_workload(summarised):
    summary = summarised()
    for kind, compared in (("single", 15), ("agentic", 10), ("concurrency", 32)):
        row = find(summary.exactness, method="dflash", kind=kind)
        assert (row.num_compared, row.num_equal) == (compared, compared)


def test_outputs_that_part_are_counted_with_their_first_position(summarised):
    summary = summarised(Shape(diverging_methods=frozenset({"dflash"})))
    row = find(summary.exactness, method="dflash", kind="single")
    assert (row.num_compared, row.num_equal, row.num_unmeasured) == (15, 6, 9)
    assert row.first_position == 16
    assert find(summary.exactness, method="ddtree-b8", kind="single").num_equal == 15


def test_a_conversation_is_compared_up_to_its_first_difference(summarised):
    summary = summarised(Shape(diverging_methods=frozenset({"dflash"})))
    row = find(summary.exactness, method="dflash", kind="agentic")
    assert (row.num_compared, row.num_equal) == (2, 0)


def test_the_baseline_is_compared_with_its_own_sessions_and_repeats(summarised):
    summary = summarised(sessions=2, repeats=2)
    row = find(summary.exactness, method="ar", kind="single")
    assert row.is_baseline
    assert (row.num_compared, row.num_equal) == (45, 45)


def test_one_run_of_the_baseline_has_nothing_to_be_compared_with(summarised):
    assert [row for row in summarised().exactness if row.is_baseline] == []


def test_failed_requests_are_not_compared(summarised):
    summary = summarised(Shape(failed_requests={"tp1-dflash.long": (2, "reset")}))
    assert find(summary.exactness, method="dflash", kind="single").num_compared == 13


def part(path, change):
    """Change the output of the first request of a result."""
    result = json.loads(path.read_text())
    change(result["requests"][0]["output_ids"])
    path.write_text(json.dumps(result))


def test_every_later_run_of_the_baseline_is_compared_with_its_first(tmp_path):
    values = campaign_values(budgets=(), sessions=3)
    paths = write_campaign(tmp_path / "c", values)
    part(paths[2] / "tp1-ar.long.json", lambda ids: ids.append(ids.pop() + 1))
    summary = summarise(*paths, tmp_path / "build")
    own = find(summary.exactness, is_baseline=True, kind="single")
    assert (own.num_compared, own.num_equal, own.first_position) == (30, 28, 95)
    drafting = find(summary.exactness, method="dflash", kind="single")
    assert (drafting.num_compared, drafting.num_equal) == (45, 44)  # in each session with that session's AR


def test_the_earliest_and_the_median_position_are_of_the_outputs_that_part(tmp_path):
    paths = write_campaign(tmp_path / "c", campaign_values(budgets=()))
    for name, place in (("short", 3), ("long", 10), ("very-long", 80)):
        part(
            paths[2] / f"tp1-dflash.{name}.json",
            lambda ids, place=place: ids.insert(place, ids.pop() + 10**6),
        )
    row = find(summarise(*paths, tmp_path / "build").exactness, method="dflash", kind="single")
    assert (row.num_compared, row.num_equal, row.num_unmeasured) == (15, 12, 3)
    assert (row.first_position, row.median_position) == (3, 10)


def test_an_output_that_ends_early_parts_and_no_gap_can_be_measured(tmp_path):
    paths = write_campaign(tmp_path / "c", campaign_values(budgets=()))
    part(paths[2] / "tp1-dflash.long.json", lambda ids: ids.pop())
    row = find(summarise(*paths, tmp_path / "build").exactness, method="dflash", kind="single")
    assert (row.num_equal, row.num_unmeasured, row.first_position) == (14, 1, 95)


def test_a_question_asked_again_is_known_by_the_order_of_its_requests_ids():
    campaign = Campaign.model_validate(campaign_values(budgets=()))
    cell = next(cell for cell in cells(campaign) if cell.workload == "concurrency-8")
    result = make_result(campaign, cell, Shape())
    requests = [request.model_copy(update={"prompt_id": "same"}) for request in result.requests]
    ordered = result.model_copy(update={"requests": requests})
    as_they_ended = result.model_copy(update={"requests": requests[::-1]})
    found = {key.occurrence: request.request_id for key, request in pair_requests(ordered).items()}
    assert found == {place: request.request_id for place, request in enumerate(requests)}
    assert pair_requests(as_they_ended) == pair_requests(ordered)
