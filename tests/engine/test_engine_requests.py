"""What a request goes through: ends, counts, aborts, kept prefixes, refusals, failures."""

import logging
import re
import threading
from dataclasses import replace

import pytest
from collecting import Collected, generate, make_requests, submit, wait

from draftbench.engine.request import Request, SamplingParams
from draftbench.engine.runner import ModelRunner
from draftbench.engine.sequence import Sequence
from draftbench.errors import ConfigError

SPECULATIVE = [{"algorithm": "DFLASH"}, {"algorithm": "DDTREE", "budget": 30}]
METHODS = [{}, *SPECULATIVE]


def free(length: int, **params) -> SamplingParams:
    return SamplingParams(max_new_tokens=length, ignore_eos=True, **params)


def greedy_text(run_engine, request: Request) -> list[int]:
    return run_engine([request])[0].token_ids


@pytest.mark.parametrize("method", METHODS)
def test_a_stop_token_ends_the_text_with_itself(run_engine, method):
    [request] = make_requests(1, max_new_tokens=40)
    text = greedy_text(run_engine, request)
    stop = text[17]
    length = text.index(stop) + 1
    for limit in (40, length):  # also where the length would end it there
        params = SamplingParams(max_new_tokens=limit, stop_token_ids=frozenset([stop]))
        [one] = run_engine([replace(request, sampling=params)], **method)
        assert one.token_ids == text[:length]
        assert (one.last.finish_type, one.last.matched_stop_id) == ("stop", stop)


def test_the_models_own_end_of_text_stops_unless_it_is_ignored(run_engine, settings, tmp_path):
    [request] = make_requests(1, max_new_tokens=40)
    text = greedy_text(run_engine, request)
    end = text[9]
    for path in settings.model_path.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [{end}]}}')
    stopping = replace(request, sampling=SamplingParams(max_new_tokens=40))
    [stopped] = run_engine([stopping], model_path=tmp_path)
    [ignoring] = run_engine([request], model_path=tmp_path)
    assert (stopped.token_ids, stopped.last.finish_type) == (text[: text.index(end) + 1], "stop")
    assert (ignoring.token_ids, ignoring.last.finish_type) == (text, "length")


def test_of_two_stops_in_one_round_the_first_ends_the_text():
    stops = SamplingParams(max_new_tokens=40, stop_token_ids=frozenset([5, 6]))
    sequence = Sequence(Request("a", (7,), stops), Collected(), 0, frozenset(), [])
    assert sequence.emit([8, 5, 9, 6]) == [8, 5]
    assert (sequence.token_ids, sequence.finish_type, sequence.matched_stop_id) == ([7, 8, 5], "stop", 5)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_counts_add_up_at_every_step_whatever_length_cuts_the_last_round(start_engine, method):
    engine = start_engine(**method)
    lengths = range(1, 40)
    found = generate(engine, [Request(str(length), (7, 8, 9), free(length)) for length in lengths])
    emissions = [len(output.token_ids) for output in found[-1].outputs]
    whole_rounds = {sum(emissions[:number]) for number in range(len(emissions) + 1)}
    assert whole_rounds < {0, *lengths}  # some lengths do cut a round
    for length, one in zip(lengths, found, strict=True):
        emitted = 0
        for output in one.outputs:
            stats = output.stats
            emitted += len(output.token_ids)
            assert stats.num_output_tokens == emitted == 1 + stats.num_rounds + stats.num_accepted_tokens
            assert sum(stats.accept_histogram) == stats.num_rounds
            assert sum(k * n for k, n in enumerate(stats.accept_histogram)) == stats.num_accepted_tokens
        assert emitted == length


def test_autoregressive_decoding_has_no_rounds(run_engine):
    [one] = run_engine([Request("a", (7, 8, 9), free(6))])
    assert [len(output.token_ids) for output in one.outputs] == [1] * 6
    assert (one.last.stats.num_rounds, one.last.stats.accept_histogram) == (0, ())


@pytest.mark.parametrize("method", METHODS)
def test_a_prefix_of_an_earlier_text_is_kept_and_changes_no_token(start_engine, run_engine, method):
    engine = start_engine(**method)
    [first] = generate(engine, [Request("first", tuple(range(3, 23)), free(20))])
    turn = (*range(3, 23), *first.token_ids[:-1], 9, 9, 4)
    [warm] = generate(engine, [Request("second", turn, free(25))])
    [cold] = run_engine([Request("second", turn, free(25))], **method)
    assert warm.token_ids == cold.token_ids
    assert (warm.last.stats.num_cached_tokens, cold.last.stats.num_cached_tokens) == (39, 0)
    assert warm.last.stats.num_rounds == cold.last.stats.num_rounds  # the drafter's context was kept too


def test_a_repeated_prompt_runs_at_least_its_last_token_again(start_engine):
    engine = start_engine()
    request = Request("a", tuple(range(3, 23)), free(5))
    first, second = (generate(engine, [request])[0] for _ in range(2))
    assert second.last.stats.num_cached_tokens == 19
    assert second.token_ids == first.token_ids


def test_a_text_cut_at_a_stop_keeps_only_rows_of_its_own_tokens(start_engine, run_engine):
    engine = start_engine(algorithm="DDTREE", budget=30)
    [request] = make_requests(1, max_new_tokens=40)
    text = greedy_text(run_engine, request)
    for cut in range(2, 30, 4):
        generate(engine, [replace(request, sampling=free(cut))])
        [one] = generate(engine, [Request("b", (*request.prompt_ids, *text[:30]), free(10))])
        assert one.token_ids == text[30:40]


def test_flushing_drops_kept_prefixes_and_is_refused_while_requests_run(start_engine):
    engine = start_engine()
    request = Request("a", tuple(range(3, 23)), free(450))
    running = submit(engine, request)
    assert not engine.flush_cache()
    wait(running)
    assert engine.flush_cache()
    [again] = generate(engine, [Request("b", tuple(range(3, 23)), free(2))])
    assert again.last.stats.num_cached_tokens == 0


def test_flushing_forgets_the_accept_length(start_engine):
    engine = start_engine(algorithm="DFLASH")
    generate(engine, make_requests(1))
    assert engine.describe()["avg_spec_accept_length"] >= 1
    assert engine.flush_cache()
    assert engine.describe()["avg_spec_accept_length"] is None


def test_waiting_requests_run_in_the_order_in_which_they_came(start_engine):
    engine = start_engine(max_running_requests=1)
    ends = []
    names = ["first", "second", "third", "fourth"]
    running = submit(engine, Request("running", (5, 6), free(200)))
    for name in names:
        engine.submit(Request(name, (7, 8), free(1)), lambda output: ends.append(output.rid))
    wait(running, submit(engine, Request("last", (7, 8), free(1))))
    assert ends == names


@pytest.mark.parametrize("method", METHODS)
def test_aborting_a_running_request_frees_its_slot_for_a_waiting_one(start_engine, method):
    engine = start_engine(max_running_requests=1, **method)
    started = threading.Event()
    running = Collected()

    def sink(output):
        running(output)
        started.set()

    engine.submit(Request("running", (5, 6), free(500)), sink)
    waiting = submit(engine, Request("waiting", (7, 8), free(3)))
    assert started.wait(30)
    assert engine.abort("running")
    wait(running, waiting)
    assert [output.finish_type for output in running.outputs if output.finish_type] == ["abort"]
    assert len(running.token_ids) < 500
    assert waiting.last.finish_type == "length"


def test_aborting_a_waiting_request_ends_it_without_tokens(start_engine):
    engine = start_engine(max_running_requests=1)
    running = submit(engine, Request("running", (5, 6), free(400)))
    waiting = submit(engine, Request("waiting", (7, 8), free(3)))
    assert engine.abort("waiting")
    wait(waiting)
    assert (waiting.last.finish_type, waiting.token_ids) == ("abort", [])
    again = submit(engine, Request("waiting", (7, 8), free(3)))
    wait(running, again)
    assert (running.last.finish_type, again.last.finish_type) == ("length", "length")


def test_aborting_an_unknown_request_says_so(start_engine):
    assert not start_engine().abort("nobody")


def test_an_abort_that_comes_too_late_does_not_end_the_next_request_of_that_name(start_engine, monkeypatch):
    engine, step = start_engine(), ModelRunner.step

    def abort_after_the_last_token(runner, sequences):
        found = step(runner, sequences)
        assert engine.abort("a")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "step", abort_after_the_last_token)
        first = submit(engine, Request("a", (5, 6), free(1)))
        wait(first)
    second = submit(engine, Request("a", (5, 6), free(3)))
    wait(second)
    assert [one.last.finish_type for one in (first, second)] == ["length", "length"]


def test_a_sink_that_fails_ends_its_own_request_only(start_engine, caplog):
    engine = start_engine(max_running_requests=2)
    told = []

    def broken(output):
        told.append(output)
        raise OSError("gone")

    engine.submit(Request("broken", (5, 6), free(400)), broken)
    [other] = generate(engine, [Request("other", (7, 8), free(30))])
    assert other.last.finish_type == "length"
    wait(submit(engine, Request("later", (7, 8), free(3))))
    assert engine.is_alive
    assert "the sink of request broken failed" in caplog.text
    assert told[-1].finish_type == "abort"
    assert len(told) < 400


def test_shutting_down_aborts_what_runs_and_refuses_what_comes(start_engine):
    engine = start_engine(max_running_requests=1)
    found = [submit(engine, Request(str(i), (5, 6), free(500))) for i in range(2)]
    engine.shutdown(10.0)
    wait(*found)
    assert [one.last.finish_type for one in found] == ["abort", "abort"]
    assert not engine.is_alive
    with pytest.raises(ConfigError, match="shut down"):
        submit(engine, Request("late", (5, 6), free(5)))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("a", ()), "at least one token, got none"),
        (Request("a", (5,) * 500, free(20)), "context of 512 tokens, got 500 \\+ 20"),
        (Request("a", (5, 32)), "token ids from 0 to 31"),
        (Request("a", (5,), free(0)), "max_new_tokens at least 1, got 0"),
        (Request("a", (5,), free(2, temperature=-0.1)), "temperature at least 0, got -0.1"),
        (Request("a", (5,), free(2, temperature=float("nan"))), "temperature at least 0, got nan"),
        (Request("a", (5,), free(2, top_p=0.0)), "top_p above 0 and at most 1, got 0.0"),
        (Request("a", (5,), free(2, top_k=0)), "top_k -1 or at least 1, got 0"),
        (Request("a", (5,), free(2), budget=9), "budget from 1 to the engine's 8, got 9"),
    ],
)
def test_a_request_out_of_range_is_refused_in_a_sentence(start_engine, request_, message):
    engine = start_engine(algorithm="DDTREE", budget=8)
    with pytest.raises(ConfigError, match=message):
        submit(engine, request_)


def test_a_name_that_runs_is_refused(start_engine):
    engine = start_engine(max_running_requests=1)
    started = threading.Event()
    engine.submit(Request("runs", (5,), free(500)), lambda _output: started.set())
    submit(engine, Request("waits", (5,), free(500)))
    assert started.wait(30)
    for name in ("runs", "waits"):
        with pytest.raises(ConfigError, match=f"expected a new rid, got '{name}'"):
            submit(engine, Request(name, (5,), free(5)))


@pytest.mark.parametrize("method", METHODS)
def test_sglangs_decode_line_is_logged_every_40_rounds(start_engine, caplog, method):
    caplog.set_level(logging.INFO)
    engine = start_engine(**method)
    [found] = generate(engine, [Request("a", (5, 6, 7), free(490))])
    lines = [record.message for record in caplog.records if record.message.startswith("Decode batch")]
    accepts = r"accept len: \d+\.\d\d, accept rate: 0\.\d\d, " if method else ""
    pattern = (
        r"Decode batch, #running-req: 1, #token: \d+, token usage: 0\.\d\d, "
        rf"{accepts}gen throughput \(token/s\): \d+\.\d\d, #queue-req: 0"
    )
    assert len(lines) >= 2
    assert all(re.fullmatch(pattern, line) for line in lines)
    stats = found.last.stats
    lifetime = (stats.num_accepted_tokens + stats.num_rounds) / stats.num_rounds if method else None
    assert engine.describe()["avg_spec_accept_length"] == lifetime


def test_a_prompts_forward_is_no_decode_step(start_engine, caplog):
    caplog.set_level(logging.INFO)
    engine = start_engine()
    for num_tokens, num_lines in ((40, 0), (2, 1)):  # 39 decode steps, and one more
        generate(engine, [Request("a", (5, 6, 7), free(num_tokens))])
        assert sum(message.startswith("Decode batch") for message in caplog.messages) == num_lines


def test_the_description_holds_settings_hashes_and_the_lifetime_accept_length(start_engine):
    engine = start_engine(algorithm="DDTREE", budget=9, context_length=100)
    found = generate(engine, make_requests(4))
    described = engine.describe()
    accepted, rounds = (
        sum(getattr(one.last.stats, name) for one in found) for name in ("num_accepted_tokens", "num_rounds")
    )
    assert described["avg_spec_accept_length"] == pytest.approx((accepted + rounds) / rounds)
    assert (described["dtype"], described["device"], described["budget"]) == ("float32", "cpu", 9)
    assert (described["context_length"], described["block_size"]) == (100, 6)
    assert re.fullmatch("[0-9a-f]{64}", described["target_sha256"])
    assert described["drafter_sha256"] not in (None, described["target_sha256"])


def test_a_profile_names_the_phases_of_a_round(start_engine):
    engine = start_engine(algorithm="DDTREE")
    engine.profile.is_on = True
    [one] = generate(engine, make_requests(1))
    assert engine.profile.num_rounds == one.last.stats.num_rounds
    assert all(ms > 0 for ms in engine.profile.round_ms().values())
    assert engine.profile.table().splitlines()[0].split() == ["phase", "ms/round", "share"]
