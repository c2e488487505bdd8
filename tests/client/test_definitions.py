"""The definitions: known answers, and properties that hold for any stream."""

import ast
import inspect
import random

import pytest
from make_records import make_record

from draftbench import definitions
from draftbench.definitions import Drafting
from draftbench.records import Chunk

SEEDS = range(25)


def random_chunks(seed):
    source = random.Random(seed)  # noqa: S311 - a seeded test, no secret
    time_s, chunks = source.uniform(0, 5), []
    for _ in range(source.randint(1, 40)):
        chunks.append(Chunk(time_s=time_s, num_tokens=source.randint(1, 8)))
        time_s += source.choice([0.0, source.uniform(0, 0.2)])
    return chunks


@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_sum_to_the_span(seed):
    chunks = random_chunks(seed)
    span_s = chunks[-1].time_s - chunks[0].time_s
    assert sum(definitions.chunk_gaps_s(chunks)) == pytest.approx(span_s)
    assert sum(definitions.gaps_per_token_s(chunks)) == pytest.approx(span_s)


@pytest.mark.parametrize("seed", SEEDS)
def test_tpot_is_the_mean_gap_per_token(seed):
    chunks = random_chunks(seed)
    gaps = definitions.gaps_per_token_s(chunks)
    assert len(gaps) == sum(chunk.num_tokens for chunk in chunks[1:])
    tpot_s = definitions.tpot_s(chunks)
    assert tpot_s is None if not gaps else tpot_s == pytest.approx(sum(gaps) / len(gaps))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_that_is_cut_into_other_chunks_keeps_its_gap_per_token_sum(seed):
    chunks = random_chunks(seed)
    merged = [chunks[0], *(chunk for chunk in chunks[1:-1] if chunk.num_tokens > 4), *chunks[1:][-1:]]
    assert sum(definitions.chunk_gaps_s(merged)) == pytest.approx(sum(definitions.chunk_gaps_s(chunks)))


def test_no_chunk_means_undefined_never_zero():
    assert definitions.ttft_s(0.0, []) is None
    assert definitions.tpot_s([]) is None
    assert definitions.tpot_s([Chunk(time_s=1.0, num_tokens=5)]) is None
    assert definitions.request_tok_per_s(make_record(times=(), tokens=())) is None


def test_chunk_gap_and_gap_per_token_are_two_series():
    chunks = [Chunk(time_s=t, num_tokens=n) for t, n in ((0.0, 1), (0.4, 4), (0.6, 1))]
    assert definitions.chunk_gaps_s(chunks) == pytest.approx([0.4, 0.2])
    assert definitions.gaps_per_token_s(chunks) == pytest.approx([0.1] * 4 + [0.2])


def test_total_speed_is_tokens_over_first_send_to_last_token():
    records = [make_record(0.0, (1.0, 2.0)), make_record(1.0, (3.0, 5.0))]
    assert definitions.total_tok_per_s(records) == pytest.approx(4 / 5)


def test_the_pause_between_repeats_does_not_count():
    records = [make_record(0.0, (1.0, 2.0)), make_record(100.0, (101.0, 102.0), repeat=1)]
    assert definitions.total_tok_per_s(records) == pytest.approx(1.0)


@pytest.mark.parametrize("status", ["failed", "short", "invalid"])
def test_a_request_that_is_not_ok_leaves_no_total_speed(status):
    assert definitions.total_tok_per_s([make_record(), make_record(status=status)]) is None
    assert definitions.total_tok_per_s([]) is None


def closed_loop(concurrency, num, token_s=0.1, num_tokens=10):
    """Records of a perfect closed loop whose slots start one after the other."""
    free = [0.03 * slot for slot in range(concurrency)]
    records = []
    for _ in range(num):
        slot = min(range(concurrency), key=free.__getitem__)
        send_s = free[slot]
        times = [send_s + token_s * (i + 1) for i in range(num_tokens)]
        records.append(make_record(send_s, times))
        free[slot] = times[-1]
    return records


@pytest.mark.parametrize("concurrency", [1, 2, 4, 8])
def test_the_steady_state_of_a_perfect_loop_has_its_speed(concurrency):
    records = closed_loop(concurrency, 4 * concurrency)
    assert definitions.steady_tok_per_s(records, concurrency) == pytest.approx(concurrency / 0.1, rel=0.05)


def test_the_steady_state_leaves_the_tail_out():
    records = [*closed_loop(4, 16), make_record(3.5, [3.6 + i for i in range(10)])]
    assert definitions.total_tok_per_s(records) < 20
    assert definitions.steady_tok_per_s(records, 4) == pytest.approx(40, rel=0.05)


def test_a_loop_that_was_never_full_has_no_steady_state():
    assert definitions.steady_window_s([make_record()], 2) is None
    apart = [make_record(0.0, (1.0, 2.0)), make_record(5.0, (6.0, 7.0))]
    assert definitions.steady_tok_per_s(apart, 2) is None


def test_a_window_of_few_tokens_is_no_steady_state():
    # Both slots decode together only from 0.9 s to 1.0 s: 2 of 21 tokens.
    early, late = [0.1 * (i + 1) for i in range(10)], [0.9 + 0.1 * i for i in range(11)]
    records = [make_record(0.0, early), make_record(0.0, late)]
    assert definitions.steady_window_s(records, 2) == pytest.approx((0.9, 1.0))
    assert definitions.steady_tok_per_s(records, 2) is None


def test_tau_counts_the_bonus_token():
    assert definitions.tau(10, 0) == 1.0
    assert definitions.tau(3, 5) == pytest.approx(8 / 3)
    assert definitions.tau(0, 0) is None
    assert definitions.tau(None, 5) is None


def test_pooled_tau_is_a_ratio_of_sums_not_a_mean_of_ratios():
    long = make_record(num_rounds=99, num_accepted_tokens=99)
    short = make_record(num_rounds=1, num_accepted_tokens=9)
    assert definitions.pooled_tau([long, short]) == pytest.approx(2.08)


def test_pooled_tau_of_autoregressive_requests_is_one():
    assert definitions.pooled_tau([make_record(tau=1.0), make_record(tau=1.0)]) == 1.0
    assert definitions.pooled_tau([make_record(tau=None)]) is None
    assert definitions.pooled_tau([]) is None


def test_histograms_of_different_lengths_add_up():
    records = [make_record(accept_histogram=[1, 2]), make_record(accept_histogram=[0, 1, 3]), make_record()]
    assert definitions.pooled_histogram(records) == [1, 3, 3]


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_requests_in_flight_are_counted_from_their_times(concurrency):
    assert definitions.max_in_flight(closed_loop(concurrency, 20)) == concurrency


def test_one_that_ends_as_another_starts_is_not_counted_twice():
    assert definitions.max_in_flight([make_record(0.0, (1.0,)), make_record(1.0, (2.0,))]) == 1


def random_rounds(seed, depth=7):
    source = random.Random(seed)  # noqa: S311 - a seeded test, no secret
    kept = [source.randint(0, depth) for _ in range(source.randint(1, 30))]
    histogram = [kept.count(k) for k in range(depth + 1)]
    num_tokens = 1 + len(kept) + sum(kept)
    facts = {
        "num_rounds": len(kept),
        "num_accepted_tokens": sum(kept),
        "num_proposed_tokens": depth * len(kept),
        "accept_histogram": histogram,
        "tau": definitions.tau(len(kept), sum(kept)),
    }
    return num_tokens, kept, facts


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_of_any_run_agree_also_when_its_last_round_is_cut(seed):
    num_tokens, kept, facts = random_rounds(seed)
    for cut in range(kept[-1] + 1):
        record = make_record(tokens=[1, num_tokens - 1 - cut] if num_tokens - 1 - cut else [1, 1], **facts)
        assert definitions.check_request(record, Drafting(True, 7)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_one_wrong_count_of_any_run_is_seen(seed):
    num_tokens, _, facts = random_rounds(seed)
    for name, change in (("num_rounds", 1), ("num_rounds", -1), ("num_accepted_tokens", 1)):
        wrong = {**facts, name: max(facts[name] + change, 1)}
        if wrong == facts:
            continue
        record = make_record(tokens=[1, num_tokens - 1], **wrong)
        assert definitions.check_request(record, Drafting(True, 7)) != []


@pytest.mark.parametrize(
    ("facts", "violation"),
    [
        ({"ttft_s": 3.0}, "ttft-after-e2e"),
        ({"times": (2.0, 1.0)}, "gap-negative"),
        ({"first_token_s": 0.5}, "gaps-not-span"),
        ({"num_output_tokens": 3, "max_tokens": 3}, "chunks-not-usage"),
        ({"output_ids": [1]}, "ids-not-usage"),
        ({"max_tokens": 1}, "tokens-over-limit"),
    ],
)
def test_each_check_of_times_and_tokens_names_itself(facts, violation):
    assert violation in definitions.check_request(make_record(**facts), Drafting())


def test_every_check_has_a_sentence():
    names = {
        node.elts[0].value
        for node in ast.walk(ast.parse(inspect.getsource(definitions)))
        if isinstance(node, ast.Tuple) and isinstance(node.elts[0], ast.Constant) and len(node.elts) == 2
    }
    assert {name for name in names if "-" in str(name)} <= set(definitions.CHECKS)
