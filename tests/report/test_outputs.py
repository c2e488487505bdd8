from synthetic import Shape
from test_summarise import find


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
