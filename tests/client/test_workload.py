"""What a cell's workload sends, and what is known of its method before the server answers."""

import pytest
from model_server import ModelServer

from draftbench.client.workload import drafting_of, verify_size_of
from draftbench.config import Method
from draftbench.definitions import Drafting
from draftbench.errors import MeasurementError


@pytest.mark.parametrize(
    ("method", "drafting", "verify_size"),
    [
        ({"algorithm": "ar"}, Drafting(is_speculative=False), None),
        ({"algorithm": "dflash", "block_size": 16}, Drafting(True, 15), 16),
        ({"algorithm": "ddtree", "block_size": 16, "budget": 8}, Drafting(True, 8), 9),
        ({"algorithm": "ddtree", "block_size": 16, "budget": 64}, Drafting(True, 15), 65),
    ],
)
def test_a_round_keeps_a_block_without_its_anchor_and_verifies_its_drafts_and_their_root(
    method, drafting, verify_size
):
    assert drafting_of(Method.model_validate(method)) == drafting
    assert verify_size_of(Method.model_validate(method)) == verify_size


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"idle_s": 0.2, "request_s": 60}, "no progress for 0.2 s"),
        ({"idle_s": 60, "request_s": 0.3}, "total limit of 0.3 s"),
    ],
)
def test_requests_have_the_campaigns_limits(run, limits, words):
    with ModelServer(token_s=0.4) as server, pytest.raises(MeasurementError, match=words):
        run(server, limits=limits)


def test_a_session_of_fewer_turns_is_held_in_every_repeat_with_the_workloads_settings(run):
    with ModelServer() as server:
        records = run(server, "natural", repeats=2).requests
    assert [(r.repeat, r.turn, r.max_tokens, r.ignore_eos) for r in records] == [
        (repeat, turn, 5, False) for repeat in (0, 1) for turn in (1, 2)
    ]


def test_prompts_are_sent_with_the_workloads_settings_and_keep_their_type(run):
    with ModelServer() as server:
        records = run(server, "natural-single").requests
    assert [(r.prompt_id, r.prompt_type, r.max_tokens, r.ignore_eos) for r in records] == [
        (f"p{index}", "code", 5, False) for index in range(4)
    ]


def test_the_warm_up_fills_the_loop_with_prompts_and_lengths_of_its_own(run):
    with ModelServer(token_s=0.03) as server:
        run(server, "loop")
    texts, lengths, running = zip(*[begun for begun in server.begun if "warm up" in begun[0]], strict=True)
    assert len(texts) == 2 * len(set(texts)) == 6  # two batches
    assert set(lengths) == {3}
    assert max(running) == 3


def test_before_each_repeat_a_tiny_request_is_sent(run):
    with ModelServer() as server:
        run(server, repeats=2)
    settling = [index for index, (text, _, _) in enumerate(server.begun) if "<user>0</>" in text]
    assert settling == [2, 7]  # two of the warm-up, four of each repeat
    assert {server.begun[index][1] for index in settling} == {8}


def test_a_settling_request_that_fails_ends_the_cell(run):
    with (
        ModelServer(broken="<user>0</>") as server,
        pytest.raises(MeasurementError, match="8 tokens to succeed after a flush, got: broken on purpose"),
    ):
        run(server)
