"""Greedy decoding in float32: every method gives the target's own tokens, alone and in a batch."""

import threading
import time

import pytest
from collecting import generate, make_requests, submit, wait
from reference_drafter import linear_decoding
from safetensors.torch import load_file, save_file
from tiny_models import DRAFTER, greedy_continuation, write_pair

from draftbench.engine.request import Request, SamplingParams
from draftbench.engine.runner import PREFILL_ROWS_PER_STEP

METHODS = {
    "ar": {},
    "dflash": {"algorithm": "DFLASH"},
    "dflash-short-block": {"algorithm": "DFLASH", "block_size": 3},
    "ddtree-b3": {"algorithm": "DDTREE", "budget": 3},
    "ddtree-b40": {"algorithm": "DDTREE", "budget": 40},
}


@pytest.fixture(scope="module")
def expected(pair) -> dict[str, list[int]]:
    return {
        request.rid: greedy_continuation(
            pair.target, list(request.prompt_ids), request.sampling.max_new_tokens
        )
        for request in make_requests(12)
    }


def texts(found) -> dict[str, list[int]]:
    return {one.last.rid: one.token_ids for one in found}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_output_is_the_targets_own_greedy_text(run_engine, expected, method, batch_size):
    found = run_engine(make_requests(12), max_running_requests=batch_size, **METHODS[method])
    assert texts(found) == expected
    if method != "ar":
        assert sum(one.last.stats.num_accepted_tokens for one in found) > 0


def test_requests_with_different_budgets_share_rounds(run_engine, expected):
    requests = [
        Request(r.rid, r.prompt_ids, r.sampling, budget=1 + 5 * i) for i, r in enumerate(make_requests(8))
    ]
    found = run_engine(requests, algorithm="DDTREE", budget=40)
    assert texts(found) == {r.rid: expected[r.rid] for r in requests}
    for request, one in zip(requests, found, strict=True):
        stats = one.last.stats
        assert stats.num_proposed_tokens == stats.num_rounds * request.budget


def test_requests_that_join_and_leave_do_not_change_the_others(start_engine, expected):
    engine = start_engine(algorithm="DDTREE", budget=12, max_running_requests=3)
    found = []
    for request in make_requests(12):
        found.append(submit(engine, request))
        time.sleep(0.003)  # so that requests meet at different lengths
    wait(*found)
    assert texts(found) == expected


def test_a_long_prompt_joins_in_pieces_while_others_decode(start_engine, tmp_path):
    roomy = write_pair(tmp_path, max_position_embeddings=2048)
    engine = start_engine(
        model_path=roomy.target_path, draft_model_path=roomy.drafter_path, algorithm="DFLASH"
    )
    short, long = make_requests(2, max_new_tokens=12)
    prompt = [3 + (i * i) % 29 for i in range(2 * PREFILL_ROWS_PER_STEP + 100)]
    found = generate(engine, [short, Request("long", tuple(prompt), long.sampling)])
    assert found[0].token_ids == greedy_continuation(roomy.target, list(short.prompt_ids), 12)
    assert found[1].token_ids == greedy_continuation(roomy.target, prompt, 12)


def sharpen(drafter_path, directory) -> None:
    """The same greedy drafts with all probability on them, so that the best tree is their chain."""
    weights = load_file(drafter_path / "model.safetensors")
    weights["norm.weight"] *= 1000.0
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_bytes((drafter_path / "config.json").read_bytes())


@pytest.mark.parametrize("method", ["dflash", "ddtree-chain"])
def test_a_linear_draft_gives_the_tokens_and_accept_counts_of_a_plain_dflash_loop(
    start_engine, pair, tmp_path, method
):
    sharpen(pair.drafter_path, tmp_path)
    engine = (
        start_engine(algorithm="DFLASH")
        if method == "dflash"
        else start_engine(algorithm="DDTREE", budget=5, draft_model_path=tmp_path)
    )
    weights = load_file(pair.drafter_path / "model.safetensors")
    for request in make_requests(4):
        prompt, num_tokens = list(request.prompt_ids), request.sampling.max_new_tokens
        tokens, accepted = linear_decoding(pair.target, weights, DRAFTER, prompt, num_tokens)
        [one] = generate(engine, [request])
        assert one.token_ids == tokens
        assert one.last.stats.num_rounds == len(accepted)
        counts = [accepted.count(kept) for kept in range(DRAFTER["block_size"])]
        assert list(one.last.stats.accept_histogram) == counts


def test_one_engine_serves_callers_from_many_threads(start_engine, expected):
    engine = start_engine(algorithm="DFLASH")
    found = {}

    def ask(request):
        one = submit(engine, request)
        wait(one)
        found[request.rid] = one.token_ids

    threads = [threading.Thread(target=ask, args=(request,)) for request in make_requests(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == expected


def test_a_prompt_of_one_token_works(run_engine, pair):
    [one] = run_engine(
        [Request("a", (5,), SamplingParams(max_new_tokens=9, ignore_eos=True))], algorithm="DDTREE"
    )
    assert one.token_ids == greedy_continuation(pair.target, [5], 9)


def test_prompt_and_output_may_fill_the_context(run_engine, pair):
    request = Request("a", tuple(range(3, 23)), SamplingParams(max_new_tokens=44, ignore_eos=True))
    [one] = run_engine([request], algorithm="DDTREE", budget=40, context_length=64)
    assert one.token_ids == greedy_continuation(pair.target, list(range(3, 23)), 44)
