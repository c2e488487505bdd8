"""After a cell, its server is asked how near each choice was to another one."""

import itertools
import time

import pytest
from logprob_target import PROMPT, RIVAL, THIRD, TOKEN, LogprobTarget
from make_records import make_identity, make_record
from model_server import ModelServer

from draftbench.client import audit, cell, logprobs
from draftbench.client.audit import audit_outputs, gap_changes, near_ties
from draftbench.client.logprobs import Continuation, decode, rows_along
from draftbench.records import CellResult

TEXTS = {"a": "prompt", "b": "prompt", "c": "another"}


def served_by_sglang(pid):
    return make_identity(pid, engine="sglang")


def record_of(request_id, num_tokens=5, **facts):
    values = {"output_ids": [TOKEN] * num_tokens, "num_prompt_tokens": len(TEXTS[request_id])}
    return make_record(request_id=request_id, **{**values, **facts})


def flag_names(flags):
    return [flag.partition(":")[0] for flag in flags]


# What a cell stores


def test_a_baseline_of_sglang_is_audited_after_it_was_measured(run):
    target = LogprobTarget(gaps={2: 0.5})
    with ModelServer(audit=target) as server:
        result = run(server, identify=served_by_sglang, repeats=2)
    assert result.violations == []
    assert "audit-incomplete" not in flag_names(result.flags)
    assert len(result.requests) == 8
    assert len(server.measured) == 8
    assert server.num_flushes == len(result.warmup.batch_tok_per_s) + 2 + 1  # the last is the audit's
    assert [output.request_ids for output in result.audit.outputs] == [
        [f"r0-{index}", f"r1-{index}"] for index in range(4)
    ]
    for output in result.audit.outputs:
        [near_tie] = output.near_ties
        assert (near_tie.position, near_tie.token_ids) == (2, [TOKEN, RIVAL, THIRD])
        assert near_tie.gaps == [0, 0.5, 8.75]
    assert CellResult.model_validate_json(result.model_dump_json()) == result


def test_the_audit_is_no_part_of_the_cells_time(run, monkeypatch):
    times_s = []

    def note_time(*_arguments):
        times_s.append(time.monotonic())
        return None, []

    monkeypatch.setattr(cell, "audit_outputs", note_time)
    with ModelServer() as server:
        result = run(server, identify=served_by_sglang)
    assert result.end_s <= times_s[0]


@pytest.mark.parametrize(
    ("options", "is_speculative"),
    [
        ({}, False),
        ({"identify": served_by_sglang, "method": "dflash"}, True),
    ],
)
def test_other_engines_and_other_methods_are_not_audited(run, options, is_speculative):
    target = LogprobTarget()
    with ModelServer(audit=target, is_speculative=is_speculative) as server:
        result = run(server, **options)
    assert (result.audit, target.bodies, result.violations) == (None, [], [])


def test_a_void_cell_is_not_audited(run):
    target = LogprobTarget()
    with ModelServer(audit=target, is_warm=True) as server:
        result = run(server, identify=served_by_sglang)
    assert (result.audit, target.bodies) == (None, [])


def test_a_result_without_the_field_still_loads(run):
    with ModelServer() as server:
        values = run(server).model_dump(mode="json")
    del values["audit"]
    assert CellResult.model_validate(values).audit is None


def test_a_cell_stands_though_its_audit_fails(run):
    def fail(answer):
        return {"error": {"message": "no log probabilities here"}}

    with ModelServer(audit=LogprobTarget(edit=fail)) as server:
        result = run(server, identify=served_by_sglang)
    assert (result.violations, result.num_ok, result.audit) == ([], 4, None)
    [flag] = [flag for flag in result.flags if flag.startswith("audit-incomplete")]
    assert "4 of 4 outputs" in flag


# What lines up


@pytest.fixture
def serve():
    """Start a server for one target; its address."""
    servers = []

    def start(target):
        servers.append(ModelServer(audit=target))
        return servers[-1].__enter__().base_url

    yield start
    for server in servers:
        server.__exit__()


def gaps_of(rows):
    return [row[TOKEN] - row[RIVAL] for row in rows]


@pytest.mark.parametrize("piece_tokens", [1, 2, 3, 4, 100])
def test_rows_belong_to_their_tokens_however_the_output_is_cut(serve, monkeypatch, piece_tokens):
    monkeypatch.setattr(logprobs, "PIECE_TOKENS", piece_tokens)
    target = LogprobTarget(gaps={0: 0.25, 1: 1.5, 2: 2.5, 3: 3.5})
    rows = rows_along(serve(target), [PROMPT] * 3, [TOKEN] * 4, 5.0)
    assert gaps_of(rows) == [0.25, 1.5, 2.5, 3.5]
    assert [len(body["input_ids"]) for body in target.bodies] == [
        3 + min(end, 4) for end in range(piece_tokens, 4 + piece_tokens, piece_tokens)
    ]


def test_decoding_tells_the_prompts_tokens_and_its_own_rows(serve):
    target = LogprobTarget(gaps={1: 1.5}, changes={1: 0.25})
    decoded = decode(serve(target), "four", 3, 5.0)
    assert (decoded.prompt_ids, decoded.output_ids) == ([PROMPT] * 4, [TOKEN] * 3)
    assert gaps_of(decoded.rows) == [5.0, 1.75, 5.0]
    [body] = target.bodies
    assert body["sampling_params"] == {"max_new_tokens": 3, "temperature": 0.0, "ignore_eos": True}
    assert (body["return_logprob"], body["top_logprobs_num"]) == (True, logprobs.NUM_CANDIDATES) == (True, 8)


def row(gap, best=TOKEN, second=RIVAL):
    return {best: -0.5, second: -0.5 - gap}


def test_a_change_is_counted_at_every_position_but_the_first():
    decoded = Continuation([PROMPT], [TOKEN] * 3, [row(1.0), row(2.0), row(3.0)])
    rows = [row(9.0), row(2.5), row(2.75)]
    assert list(gap_changes(decoded, [TOKEN] * 3, rows)) == [-0.5, 0.25]


def test_after_decoding_has_parted_from_the_output_nothing_is_compared():
    decoded = Continuation([PROMPT], [TOKEN, RIVAL, TOKEN], [row(1.0), row(0.5, RIVAL, TOKEN), row(1.0)])
    rows = [row(1.0), row(0.25), row(8.0)]
    assert list(gap_changes(decoded, [TOKEN] * 3, rows)) == [0.75]  # -0.25 became +0.5 for the other token


def test_a_candidate_that_the_other_pass_does_not_name_has_no_change():
    decoded = Continuation([PROMPT], [TOKEN] * 3, [row(1.0)] * 3)
    rows = [row(1.0), row(1.0, TOKEN, THIRD), row(1.5)]
    assert list(gap_changes(decoded, [TOKEN] * 3, rows)) == [-0.5]


def test_only_near_ties_and_choices_that_are_not_the_best_are_kept():
    rows = [row(5.0), row(audit.MARGIN), row(6.0, best=RIVAL, second=TOKEN), row(audit.MARGIN + 0.01)]
    kept = list(near_ties([TOKEN] * 4, rows))
    assert [near_tie.position for near_tie in kept] == [1, 2]
    assert (kept[1].token_ids, kept[1].gaps) == ([RIVAL, TOKEN], [0, 6.0])


def test_the_noise_is_what_gaps_change_by(serve):
    target = LogprobTarget(changes={0: 4.0, 1: 0.3, 2: -0.4})
    audits, flags = audit_outputs(serve(target), [record_of("a", 3)], TEXTS)
    assert flags == []
    assert audits.noise.num_positions == 2
    assert audits.noise.rms == pytest.approx((0.25 / 2) ** 0.5)
    assert audits.noise.largest == pytest.approx(0.4)


def test_without_two_computations_there_is_no_noise(serve):
    audits, _ = audit_outputs(serve(LogprobTarget()), [record_of("a", 1)], TEXTS)
    assert audits.noise is None


def test_equal_outputs_of_a_prompt_are_audited_once_and_others_each(serve):
    target = LogprobTarget()
    records = [record_of("a"), record_of("b"), record_of("c"), record_of("b", 4)]
    audits, flags = audit_outputs(serve(target), records, TEXTS)
    assert flags == []
    assert [output.request_ids for output in audits.outputs] == [["a", "b"], ["b"], ["c"]]
    assert sum("text" in body for body in target.bodies) == 2


def test_requests_without_an_output_are_not_asked_about(serve):
    target = LogprobTarget()
    records = [record_of("a", status="failed"), record_of("b", output_ids=None)]
    assert audit_outputs(serve(target), records, TEXTS) == (None, [])
    assert target.bodies == []


def test_a_cell_decodes_no_more_than_its_share(serve):
    target = LogprobTarget()
    texts = {f"p{index}": f"prompt {index}" for index in range(9)}
    records = [
        make_record(request_id=name, output_ids=[TOKEN] * 50, num_prompt_tokens=len(text))
        for name, text in texts.items()
    ]
    audits, _ = audit_outputs(serve(target), records, texts)
    decoded = [body["sampling_params"]["max_new_tokens"] for body in target.bodies if "text" in body]
    assert decoded == [32] * 5 + [1] * 4
    assert len(audits.outputs) == 9
    assert audits.noise.num_positions == 5 * 31


# What may go wrong


def without(name):
    return lambda answer: {key: value for key, value in answer.items() if key != name}


def with_meta(name, change):
    """Change one list of the answers that hold it."""

    def edit(answer):
        meta = answer["meta_info"]
        return {**answer, "meta_info": meta | ({name: change(meta[name])} if name in meta else {})}

    return edit


BROKEN = {
    "no prompt": without("prompt_token_ids"),
    "no meta": without("meta_info"),
    "a list": lambda answer: [answer],
    "a short prompt": lambda answer: answer | {"prompt_token_ids": [PROMPT]},
    "a long prompt": lambda answer: answer | {"prompt_token_ids": [PROMPT] * 7},
    "words": lambda answer: answer | {"prompt_token_ids": ["a"] * 6},
    "no decoded rows": with_meta("output_top_logprobs", lambda rows: None),
    "few decoded tokens": with_meta("output_token_logprobs", lambda tokens: tokens[1:]),
    "few rows": with_meta("input_top_logprobs", lambda rows: rows[2:]),
    "other tokens": with_meta("input_token_logprobs", lambda tokens: [[-1.0, THIRD, None]] * len(tokens)),
    "shifted tokens": with_meta("input_token_logprobs", lambda tokens: [*tokens[1:], [-1.0, PROMPT, None]]),
    "no row": with_meta("input_top_logprobs", lambda rows: [*rows[:-1], None]),
    "one candidate": with_meta("input_top_logprobs", lambda rows: [[[-1.0, TOKEN, None]]] * len(rows)),
    "the same twice": with_meta("input_top_logprobs", lambda rows: [[[-1.0, TOKEN, None]] * 2] * len(rows)),
    "a null": with_meta("input_top_logprobs", lambda rows: [[[None, 1, None]] * 2] * len(rows)),
    "not a number": with_meta("input_top_logprobs", lambda rows: [[[float("nan"), 1, None]] * 2] * len(rows)),
    "a text": with_meta("input_top_logprobs", lambda rows: ["-1.0"] * len(rows)),
}


@pytest.mark.parametrize("edit", BROKEN.values(), ids=BROKEN)
def test_an_answer_that_does_not_line_up_gives_no_audit_and_a_flag(serve, edit):
    audits, flags = audit_outputs(serve(LogprobTarget(edit=edit)), [record_of("a")], TEXTS)
    assert audits is None
    assert flag_names(flags) == ["audit-incomplete"]
    assert "1 of 1 outputs" in flags[0]


def test_one_bad_answer_takes_no_other_audit_away(serve):
    answers = itertools.count()

    def edit(answer):
        return {} if next(answers) == 0 else answer

    audits, flags = audit_outputs(serve(LogprobTarget(edit=edit)), [record_of("a"), record_of("c")], TEXTS)
    assert [output.request_ids for output in audits.outputs] == [["c"]]
    assert "1 of 2 outputs" in flags[0]


def test_a_server_that_fails_three_times_is_not_asked_again(serve):
    target = LogprobTarget(edit=lambda answer: {})
    texts = {f"p{index}": f"prompt {index}" for index in range(9)}
    records = [make_record(request_id=name, output_ids=[TOKEN], num_prompt_tokens=8) for name in texts]
    audits, flags = audit_outputs(serve(target), records, texts)
    assert (audits, len(target.bodies)) == (None, 3)
    assert "9 of 9 outputs" in flags[0]


def test_a_dead_server_gives_a_flag_and_no_error():
    with ModelServer() as server:
        pass
    audits, flags = audit_outputs(server.base_url, [record_of("a")], TEXTS)
    assert audits is None
    assert flag_names(flags) == ["audit-incomplete"]


def test_an_audit_that_takes_too_long_ends(serve, monkeypatch):
    monkeypatch.setattr(audit, "CELL_LIMIT_S", -1.0)
    target = LogprobTarget()
    audits, flags = audit_outputs(serve(target), [record_of("a")], TEXTS)
    assert (audits, target.bodies) == (None, [])
    assert "not done within" in flags[0]
