"""Where a method's text parts from the baseline's, the audit of the baseline's server decides."""

import json

import pytest
from synthetic import Shape, campaign_values, write_campaign
from test_summarise import find

from draftbench.report.summarise import summarise

NUM_TOKENS = 10
POSITION = (
    NUM_TOKENS // 2
)  # where the synthetic outputs of a method that diverges part: its token is 1 higher
NOISE = {"num_positions": 100, "rms": 0.1, "largest": 0.25}  # so gaps up to 0.6 are ties
OTHER = -1  # a token that neither output has


def near_tie(*candidates, position=POSITION):
    """Candidates as (shift from the baseline's token, or OTHER; gap to the best)."""
    return {"position": position, "candidates": candidates}


@pytest.fixture
def counted(tmp_path):
    """Summarise one prompt's outputs, the baseline's audited; (ties, faults, not measured) of DFlash.

    The whole row is then in its `row`.
    """
    values = campaign_values(budgets=())
    prompts = "config/prompts/single.yaml"
    values["workloads"] = {"long": {"kind": "single", "prompts": prompts, "max_tokens": NUM_TOKENS}}
    paths = write_campaign(tmp_path / "c", values, Shape(diverging_methods=frozenset({"dflash"})))

    def audit_of(request, near_ties, request_ids):
        def token(shift):
            return 10**6 if shift == OTHER else request["output_ids"][POSITION] + shift

        kept = [
            {
                "position": entry["position"],
                "token_ids": [token(shift) for shift, _ in entry["candidates"]],
                "gaps": [gap for _, gap in entry["candidates"]],
            }
            for entry in near_ties
        ]
        return {"request_ids": request_ids or ["x", request["request_id"]], "near_ties": kept}

    def run(*near_ties, noise=NOISE, margin=2.0, request_ids=None, num_kept=NUM_TOKENS):
        for path in paths[2].glob("*.json"):
            result = json.loads(path.read_text())
            first = result["requests"][0]
            result |= {"requests": [first], "num_attempted": 1, "num_ok": 1}
            if "dflash" in path.name:
                first["output_ids"] = first["output_ids"][:num_kept]
            else:
                outputs = [audit_of(first, near_ties, request_ids)]
                result["audit"] = {"margin": margin, "noise": noise, "outputs": outputs}
            path.write_text(json.dumps(result))
        summary = summarise(*paths, tmp_path / "build", can_measure_gaps=False)
        row = run.row = find(summary.exactness, method="dflash")
        return row.num_ties, row.num_faults, row.num_unmeasured

    return run


TIE, FAULT, NOT_MEASURED = (1, 0, 0), (0, 1, 0), (0, 0, 1)


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ([(0, 0.0), (1, 0.5), (OTHER, 4.0)], TIE),
        ([(1, 0.0), (0, 0.5), (OTHER, 4.0)], TIE),  # the pass prefers the method's token
        ([(OTHER, 0.0), (0, 1.0), (1, 1.5)], TIE),  # both far from the best, but near each other
        ([(0, 0.0), (1, 0.7), (OTHER, 4.0)], FAULT),
        ([(1, 0.0), (0, 0.7), (OTHER, 4.0)], FAULT),
        (
            [(0, 0.0), (OTHER, 0.1)],
            NOT_MEASURED,
        ),  # the method's token is no nearer than 0.1, which may be a tie
        ([(0, 0.0), (OTHER, 0.7)], FAULT),  # and here no nearer than 0.7
        ([(0, 0.0), (OTHER, 0.1), (OTHER, 0.7)], FAULT),  # nor here: the last that was kept decides
        ([(OTHER, 0.0), (1, 0.7)], NOT_MEASURED),  # the baseline's token is no nearer than the method's
    ],
)
def test_the_gap_of_the_two_tokens_decides(counted, candidates, expected):
    assert counted(near_tie(*candidates)) == expected
    assert counted.row.largest_tie_gap == (pytest.approx(0.5) if expected == TIE else None)


def test_a_position_without_a_near_tie_is_a_fault(counted):
    assert counted(near_tie((0, 0.0), (1, 0.1), position=POSITION - 1)) == FAULT


def test_a_position_without_a_near_tie_says_nothing_where_the_servers_noise_is_above_the_margin(counted):
    assert counted(noise={"num_positions": 100, "rms": 0.4, "largest": 0.5}) == NOT_MEASURED


def test_a_change_that_was_seen_is_never_a_fault(counted):
    noise = {"num_positions": 100, "rms": 0.01, "largest": 0.1}
    assert counted(near_tie((0, 0.0), (1, 0.1)), noise=noise) == TIE
    assert counted.row.largest_tie_gap == pytest.approx(0.1)
    assert counted(near_tie((0, 0.0), (1, 0.11)), noise=noise) == FAULT


@pytest.mark.parametrize(
    "noise", [None, {**NOISE, "num_positions": 31}, {"num_positions": 100, "rms": 0.0, "largest": 0.0}]
)
def test_without_enough_noise_nothing_is_judged(counted, noise):
    assert counted(near_tie((0, 0.0), (1, 0.5)), noise=noise) == NOT_MEASURED


def test_an_output_that_was_not_audited_is_not_judged(counted):
    assert counted(near_tie((0, 0.0), (1, 0.5)), request_ids=["another"]) == NOT_MEASURED


def test_how_much_was_compared_and_how_often_a_second_choice_would_pass_are_told(counted):
    """Two of ten tokens have another within 0.6: where the texts part and one more; a third is just above."""
    near = near_tie((0, 0.0), (1, 0.5))
    others = [near_tie((0, 0.0), (OTHER, gap), position=place) for place, gap in ((1, 0.6), (2, 0.61))]
    assert counted(near, *others) == TIE
    row = counted.row
    assert (row.num_prompts, row.num_tokens, row.num_compared_tokens) == (1, NUM_TOKENS, POSITION + 1)
    assert row.tie_limit == pytest.approx(0.6)
    assert row.near_tie_share == pytest.approx(2 / NUM_TOKENS)


def test_a_limit_beyond_what_the_audit_keeps_leaves_the_near_ties_unknown(counted):
    counted(near_tie((0, 0.0), (1, 0.5)), noise={"num_positions": 100, "rms": 0.4, "largest": 0.5})
    assert counted.row.tie_limit == pytest.approx(2.4)
    assert counted.row.near_tie_share is None


def test_an_output_that_has_ended_has_no_token_to_judge(counted):
    assert counted(num_kept=POSITION) == NOT_MEASURED
