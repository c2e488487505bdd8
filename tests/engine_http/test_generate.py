import pytest
from scripted_engine import EOS_ID
from watching import wait_until

from draftbench.engine.request import SamplingParams

GREEDY = {"temperature": 0, "max_new_tokens": 64}


def test_a_whole_answer_has_text_ids_and_counts(start_server, tokenizer):
    server = start_server("the lazy dog", is_speculative=False)
    answer = server.post("/generate", {"text": "fox", "sampling_params": GREEDY, "rid": "r1"}).json()
    ids = list(tokenizer.encode("the lazy dog"))
    latency_s = answer["meta_info"].pop("e2e_latency")
    assert answer == {
        "text": "the lazy dog",
        "output_ids": ids,
        "meta_info": {
            "id": "r1",
            "finish_reason": {"type": "length", "length": len(ids)},
            "prompt_tokens": len(tokenizer.encode("fox")),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
        },
    }
    assert 0 < latency_s < 5


def test_a_stream_has_one_event_per_step_and_repeats_what_came_before(start_server, tokenizer):
    server = start_server('say "the lazy dog"\n', group_tokens=2)
    *events, done = server.events("/generate", {"text": "fox", "sampling_params": GREEDY})
    ids = list(tokenizer.encode('say "the lazy dog"\n'))
    ends = [min(n, len(ids)) for n in range(2, len(ids) + 2, 2)]
    assert done == "[DONE]"
    assert [event["output_ids"] for event in events] == [ids[:n] for n in ends]
    assert [event["text"] for event in events] == [tokenizer.decode(ids[:n]) for n in ends]
    assert [event["meta_info"]["completion_tokens"] for event in events] == ends
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": len(ids)}


def test_the_last_event_equals_the_whole_answer(start_server):
    server = start_server("the lazy dog")
    body = {"text": "fox", "sampling_params": GREEDY, "rid": "r"}
    *_, last, _done = server.events("/generate", body)
    whole = server.post("/generate", body).json()
    for answer in (last, whole):
        del answer["meta_info"]["e2e_latency"], answer["meta_info"]["cached_tokens"]
    assert last == whole


def test_speculative_counts_bear_sglangs_names(start_server):
    server = start_server("0123456789", group_tokens=4)
    meta = server.post("/generate", {"text": "x", "sampling_params": GREEDY | {"max_new_tokens": 9}}).json()[
        "meta_info"
    ]
    counts = {name: meta[name] for name in meta if name.startswith("spec_")}
    assert counts == {
        "spec_verify_ct": 2,
        "spec_accept_length": 4.5,
        "spec_accept_rate": 3 / 30,
        "spec_num_correct_drafts": 3,
        "spec_num_proposed_drafts": 30,
        "spec_correct_drafts_histogram": [1, 0, 0, 1] + [0] * 12,
    }


def test_an_answer_without_rounds_has_no_speculative_counts(start_server):
    server = start_server("the lazy dog")
    meta = server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 1}}).json()[
        "meta_info"
    ]
    assert not [name for name in meta if name.startswith("spec_")]


def test_the_token_that_stops_counts_but_has_no_text(start_server, tokenizer):
    server = start_server("fox!ab")
    stop_id = tokenizer.encode("!")[0]
    sampling = GREEDY | {"stop_token_ids": [stop_id]}
    answer = server.post("/generate", {"text": "x", "sampling_params": sampling}).json()
    assert answer["text"] == "fox"
    assert answer["output_ids"][-1] == stop_id
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop_id}


def test_the_end_of_text_is_ignored_on_demand(start_server):
    server = start_server("fox", "fox", extra_ids=(EOS_ID, 40, 41))
    stopped = server.post("/generate", {"text": "x", "sampling_params": GREEDY}).json()
    ignored = server.post("/generate", {"text": "x", "sampling_params": GREEDY | {"ignore_eos": True}}).json()
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS_ID}
    assert len(ignored["output_ids"]) == len(stopped["output_ids"]) + 2


def test_a_stop_string_across_steps_ends_the_text_before_it(start_server):
    server = start_server("the END of it all", step_s=0.01)
    *events, done = server.events("/generate", {"text": "x", "sampling_params": GREEDY | {"stop": ["END"]}})
    assert events[-1]["text"] == "the "
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "END"}
    assert not any("E" in event["text"] for event in events)
    assert done == "[DONE]"
    wait_until(lambda: server.engine.num_in_flight == 0)


def test_tokens_of_a_round_behind_a_stop_string_are_dropped(start_server, tokenizer):
    server = start_server("the END of it all", group_tokens=16)
    answer = server.post("/generate", {"text": "x", "sampling_params": GREEDY | {"stop": "END"}}).json()
    assert answer["text"] == "the "
    assert tokenizer.decode(answer["output_ids"]) == "the END"
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"])


def test_a_held_back_beginning_of_a_stop_string_is_given_out_at_the_end(start_server):
    server = start_server("the EN")
    answer = server.post("/generate", {"text": "x", "sampling_params": GREEDY | {"stop": "END"}}).json()
    assert answer["text"] == "the EN"


def test_an_emoji_split_over_tokens_is_sent_whole(start_server, tokenizer):
    server = start_server("ab👍cd", step_s=0.005)
    *events, _ = server.events("/generate", {"text": "x", "sampling_params": GREEDY})
    assert len(events) == len(tokenizer.encode("ab👍cd"))
    assert {event["text"] for event in events} == {"a", "ab", "ab👍", "ab👍c", "ab👍cd"}


def test_a_text_that_ends_within_a_character_has_all_its_tokens(start_server, tokenizer):
    server = start_server("ab👍")
    ids = tokenizer.encode("ab👍")[:-1]
    sampling = GREEDY | {"max_new_tokens": len(ids)}
    answer = server.post("/generate", {"text": "x", "sampling_params": sampling}).json()
    assert (answer["output_ids"], answer["text"]) == (list(ids), tokenizer.decode(ids))
    assert answer["text"] != "ab"


def test_token_ids_are_taken_as_the_prompt(start_server):
    server = start_server("the lazy dog")
    server.post("/generate", {"input_ids": [5, 6, 7], "sampling_params": GREEDY})
    assert server.engine.requests[0].prompt_ids == (5, 6, 7)


def test_every_sampling_setting_reaches_the_engine(start_server):
    server = start_server("the lazy dog")
    sampling = {
        "max_new_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "sampling_seed": 11,
        "ignore_eos": True,
        "stop_token_ids": [9],
        "custom_params": {"ddtree_budget": 5},
    }
    server.post("/generate", {"text": "x", "sampling_params": sampling})
    request = server.engine.requests[0]
    assert request.sampling == SamplingParams(3, 0.5, 0.9, 7, 11, True, frozenset([9]))
    assert request.budget == 5


def test_defaults_are_sglangs(start_server):
    server = start_server("the lazy dog")
    server.post("/generate", {"text": "x"})
    assert server.engine.requests[0].sampling == SamplingParams(max_new_tokens=128, temperature=1.0)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_seeds_may_use_63_bits(start_server, seed):
    server = start_server("the lazy dog")
    assert server.post("/generate", {"text": "x", "sampling_params": {"seed": seed}}).status_code == 200
    assert server.engine.requests[0].sampling.seed == seed
