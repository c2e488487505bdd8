"""What the numbers are of: launch, room in the KV cache, prompts, replies and load."""

import json

from synthetic import Shape, campaign_values, write_campaign
from test_notes import TEMPLATES
from test_summarise import find

from draftbench.config import Campaign
from draftbench.report.draw import FigureList
from draftbench.report.engine import engine_settings, room_text
from draftbench.report.plots.acceptance import by_prompt_type
from draftbench.report.scope import scope_sentence
from draftbench.report.summarise import summarise
from draftbench.report.typeset import render

SETTING = ("small", 1)


def test_the_launch_that_a_baseline_depends_on_is_told(summarised):
    values = campaign_values(budgets=(), tps=(1, 2))
    values["engine"] |= {
        "attention_backend": "fa3",
        "mem_fraction_static": 0.7,
        "max_running_requests": 5,
        "radix_cache": False,
        "extra_args": {"disable-cuda-graph": True},
        "environment": {"NCCL_P2P_DISABLE": "1"},
    }
    said = engine_settings(Campaign.model_validate(values), [])
    for words in (
        "attention backend fa3",
        "0.7 of the GPU’s memory",
        "at most 5 requests at once",
        "no prefixes kept",
        "disable-cuda-graph True",
        "NCCL_P2P_DISABLE=1",
    ):
        assert words in said
    summary = summarised(budgets=())
    assert summary.engine_settings.startswith("bfloat16, device auto")  # as the server resolved `auto`
    source = render(summary, FigureList(figures=[]), TEMPLATES).replace("{}", "").replace("\\allowbreak", "")
    assert f"Settings of the engine & {summary.engine_settings}" in source


def test_the_room_for_tokens_stands_beside_the_baseline_s(tmp_path):
    paths = write_campaign(tmp_path / "c", campaign_values(budgets=(8,), sessions=2))
    rooms = {"tp1-ar": 1000, "tp1-ar-s2": 1000, "tp1-dflash": 850, "tp1-dflash-s2": 840}
    for path in paths[2].glob("*.json"):
        result = json.loads(path.read_text())
        if result["service"] in rooms:
            result["identity"]["server_info"]["max_total_num_tokens"] = rooms[result["service"]]
            path.write_text(json.dumps(result))
    summary = summarise(*paths, tmp_path / "build")
    assert room_text(summary, SETTING) == "AR 1\u00a0000, DFlash 840 (84\u00a0%)"


def test_servers_that_do_not_say_have_no_room(summarised):
    assert room_text(summarised(budgets=()), SETTING) == ""


def test_the_scope_is_what_was_measured_and_not_what_was_planned(summarised):
    unmeasured = frozenset(f"tp1-{name}.concurrency-8" for name in ("ar", "dflash"))
    said = scope_sentence(summarised(Shape(missing=unmeasured), is_partial=True, budgets=()))
    assert "prompts of 60 tokens and 140 to 460 tokens in conversations, " in said
    assert "replies that run on to the length asked, and at most 4 requests in flight" in said


def test_replies_that_end_by_themselves_are_told_so(tmp_path):
    values = campaign_values(budgets=())
    values["workloads"] = {"long": values["workloads"]["long"] | {"ignore_eos": False}}
    summary = summarise(*write_campaign(tmp_path / "c", values), tmp_path / "build")
    said = scope_sentence(summary)
    assert "prompts of 60 tokens, replies to the model’s own end, and one request at a time." in said


def test_a_type_of_prompts_says_of_how_many_it_is(summarised):
    summary = summarised(budgets=())
    assert find(summary.acceptance, method="dflash", prompt_type=None).num_prompts == 5
    (figure,) = by_prompt_type(summary)
    assert "n = 1 prompt of each type." in figure.caption
