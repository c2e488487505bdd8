"""Gates of the plugin `sglang-ddtree` on a GPU: first its kernels, then real servers against AR and DFlash.

    python tests/gpu/sglang_ddtree_gates.py --target DIR --drafter DIR --output gates.json

Part 1 takes less than a minute (`sglang_ddtree_kernels.py`). Part 2 starts all servers beside each other,
asks each the same, and ends every one. Outputs are greedy and compared with AR's, token by token; where one
parts from AR's, the gap between AR's two best tokens there tells a tie from a fault. The summary is written
after every step, so that a run that is cut short leaves what it found.

Two servers that differ only in how they schedule may still part at ties. A prompt that is in the prefix cache
is computed anew for its last token; SGLang then drops that token's keys and values for the cached ones, which
another shape of forward has rounded otherwise: without overlap before the first round, with overlap after its
launch. So `b16` and `b16-sync` are also compared by outputs with the cache emptied before each request; those
must be the same, and the same when asked again.

`--tp N` gives every server N GPUs, all servers the same ones, AR's before the others; or each server alone by
`--one-by-one`, or all at once by `--together` on a host whose GPUs SGLang has used together before. The
target's and the drafter's heads must split. SmolLM2-135M's 9 do not, but those of the same model with more
heads do; its outputs are the original's but for ties. Here 24 and 8, for up to 8 GPUs:

    from draftbench.staging.scale import ScaledShape, scale_pair
    shape = ScaledShape(1, 30, 1536, num_attention_heads=24, num_key_value_heads=8, weight_bits=16)
    scale_pair(target, drafter, Path("split/target"), Path("split/drafter"), shape)
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from sglang_ddtree_servers import ARMS, ROOT, Server, Setting, ask_all, end_all, start  # noqa: E402

NUM_TOKENS = 128
TIE_LOGITS = 0.5
"""Steps of bf16 logits between 16 and 32 are 1/8; sums of such roundings reach a few of them."""

SAME_WHEN_FRESH = ("b16", "b16-sync")
"""Servers whose outputs without a prefix cache must be the same."""

KINDS = ("single", "batch", "resumed", "fresh")
"""Ways in which outputs are asked for and compared with AR's."""

HIDDEN = ("single_ids", "fresh_ids", "samples", "log")
"""Parts of a result that are kept and not shown."""

Prompts = list[list[int]]


def read_prompts(target: Path) -> Prompts:
    """Token ids of the five measured prompts and of three variants, in the target's chat template."""
    import yaml  # noqa: PLC0415  (part 1 needs neither)
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(target)
    texts = [
        one["text"] for one in yaml.safe_load((ROOT / "config/prompts/single.yaml").read_text())["prompts"]
    ]
    texts += [f"{text} Be brief." for text in texts[:3]]
    rendered = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        for text in texts
    ]
    return [tokenizer(text, add_special_tokens=False).input_ids for text in rendered]


def greedy(ids: list[int], num_tokens: int = NUM_TOKENS, **more: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
    return {"input_ids": ids, "sampling_params": sampling} | more


def output_ids(reply: Any) -> list[int]:
    return [] if reply is None else list(reply["output_ids"])


def baseline(server: Server, prompts: Prompts) -> list[dict[str, Any]]:
    """AR's tokens and, at every token, the gap between its two best."""
    found = []
    for ids in prompts:
        reply = server.ask(greedy(ids, return_logprob=True, top_logprobs_num=2, logprob_start_len=-1))
        pairs = reply["meta_info"]["output_top_logprobs"]
        found.append({"ids": output_ids(reply), "gaps": [pair[0][0] - pair[1][0] for pair in pairs]})
    return found


def compare(found: list[int], wanted: dict[str, Any], num_tokens: int = NUM_TOKENS) -> dict[str, Any]:
    """Where an output parts from AR's, and how clear AR's choice is there."""
    expected = wanted["ids"][:num_tokens]
    if found == expected:
        return {"equal": True}
    place = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(found))
    gap = wanted["gaps"][place] if place < len(expected) else None
    is_tie = len(found) == len(expected) and gap is not None and gap <= TIE_LOGITS
    return {"equal": False, "length": len(found), "parts_at": place, "gap": gap, "tie": is_tie}


def acceptance(replies: list[Any]) -> dict[str, Any]:
    """Tokens a round, pooled, and how often so many drafts were kept."""
    infos = [reply["meta_info"] for reply in replies if reply is not None]
    rounds = sum(info.get("spec_verify_ct", 0) for info in infos)
    if not rounds:
        return {}
    histogram: Counter[int] = Counter()
    for info in infos:
        histogram.update(dict(enumerate(info.get("spec_correct_drafts_histogram", []))))
    kept = sum(info.get("spec_num_correct_drafts", 0) for info in infos)
    return {
        "rounds": rounds,
        "tau": round(1 + kept / rounds, 3),
        "histogram": [histogram[i] for i in range(16)],
    }


def measure(
    server: Server, prompts: Prompts, wanted: list[dict[str, Any]], num_samples: int
) -> dict[str, Any]:
    """Everything that is asked of one server."""
    ask_all(server, [greedy(ids, 24) for ids in prompts], at_once=1)
    ask_all(server, [greedy(ids, 24) for ids in prompts], at_once=8)
    single, single_s = ask_all(server, [greedy(ids) for ids in prompts[:5]], at_once=1)
    lengths = [NUM_TOKENS - 11 * i for i in range(8)]  # so that requests end at different times
    bodies = [greedy(ids, length) for ids, length in zip(prompts, lengths, strict=True)]
    together, together_s = ask_all(server, bodies, at_once=8)
    # A prompt whose end was generated before: its keys and values come from the cache, moved there by trees.
    resumed, _ = ask_all(server, [greedy(prompts[0] + wanted[0]["ids"][:40], 40)] * 2, at_once=1)
    rest = {key: values[40:80] for key, values in wanted[0].items()}
    result: dict[str, Any] = {
        "single": [compare(output_ids(r), w) for r, w in zip(single, wanted, strict=False)],
        "single_tok_s": round(sum(len(output_ids(r)) for r in single) / single_s, 1),
        "single_acceptance": acceptance(single),
        "batch": [compare(output_ids(r), w, n) for r, w, n in zip(together, wanted, lengths, strict=True)],
        "batch_tok_s": round(sum(len(output_ids(r)) for r in together) / together_s, 1),
        "batch_acceptance": acceptance(together),
        "resumed": [compare(output_ids(r), rest, 40) for r in resumed],
        "single_ids": [output_ids(r) for r in single],
    }
    if server.arm.name in SAME_WHEN_FRESH:
        result["fresh_ids"] = [[ask_fresh(server, ids) for _ in range(2)] for ids in prompts[:5]]
        result["fresh"] = [compare(ids, w) for (ids, _), w in zip(result["fresh_ids"], wanted, strict=False)]
    if num_samples:
        sampling = {"temperature": 1.0, "top_k": 4, "max_new_tokens": 4, "ignore_eos": True}
        drawn, _ = ask_all(
            server, [{"input_ids": prompts[3], "sampling_params": sampling}] * num_samples, at_once=8
        )
        result["samples"] = Counter(str(output_ids(r)[:3]) for r in drawn)
    return result


def ask_fresh(server: Server, ids: list[int]) -> list[int]:
    """One output of a server that knows no prefix."""
    server.flush()
    return output_ids(server.ask(greedy(ids)))


def compare_samples(one: Counter[str], other: Counter[str]) -> dict[str, Any]:
    """Two-sample chi-square of what was drawn, rare outcomes pooled; a deviate far above 3 is a fault."""
    both = one + other
    cells = [([one[key]], [other[key]]) for key, total in both.items() if total >= 10]
    rare = [key for key, total in both.items() if total < 10]
    if rare:
        cells.append(([one[key] for key in rare], [other[key] for key in rare]))
    n, m = one.total(), other.total()
    statistic = 0.0
    for left, right in cells:
        a, b = sum(left), sum(right)
        statistic += (a * math.sqrt(m / n) - b * math.sqrt(n / m)) ** 2 / (a + b)
    freedom = max(1, len(cells) - 1)
    deviate = (statistic - freedom) / math.sqrt(2 * freedom)
    return {"cells": len(cells), "chi_square": round(statistic, 1), "deviate": round(deviate, 2)}


def verdict(result: dict[str, Any]) -> list[str]:
    """What is wrong with one server, in words; empty where nothing is."""
    faults = []
    for kind in KINDS:
        for place, one in enumerate(result.get(kind, [])):
            if not one["equal"] and not one["tie"]:
                faults.append(f"{kind} {place}: {one}")
    for place, (first, again) in enumerate(result.get("fresh_ids", [])):
        if first != again:
            faults.append(f"fresh {place}: another output when asked again")
    if result.get("samples_against_ar", {}).get("deviate", 0) > 4:
        faults.append(f"samples: {result['samples_against_ar']}")
    return faults


def run_servers(options: argparse.Namespace, summary: dict[str, Any], deadline: float) -> None:
    """Start all arms, or one after the other; measure and end all."""
    prompts = read_prompts(options.target)
    models = (options.target, options.drafter)
    setting = Setting(options.python, models, options.dtype, options.tp, options.logs)
    arms = [arm for arm in ARMS if options.only is None or arm.name in options.only]
    wanted: list[dict[str, Any]] = []
    groups = [[arm] for arm in arms] if options.one_by_one else [arms]
    if options.tp > 1 and not (options.one_by_one or options.together):
        # The first start writes down how the GPUs are linked; starts beside each other would all write it.
        groups = [arms[:1], arms[1:]]
    for together in groups:
        servers: list[Server] = []
        try:
            for arm in together:
                servers.append(start(arm, setting))
            for server in servers:
                limit = min(deadline, server.started + options.start_limit_s)
                result = examine(server, prompts, wanted, options.samples, limit)
                summary[server.arm.name] = result
                if "samples" in result and "samples" in summary.get("ar", {}):
                    result["samples_against_ar"] = compare_samples(
                        result["samples"], summary["ar"]["samples"]
                    )
                result["faults"] = verdict(result)
                report(server.arm.name, result)
                options.output.write_text(json.dumps(summary, indent=1))
        finally:
            end_all(servers)


def examine(
    server: Server, prompts: Prompts, wanted: list[dict[str, Any]], num_samples: int, limit: float
) -> dict[str, Any]:
    """Wait for one server and measure it. AR's outputs, which come first, go into `wanted`."""
    result: dict[str, Any] = {}
    try:
        if not server.wait_ready(limit):
            raise TimeoutError(f"not ready; {'alive' if server.is_alive() else 'the process ended'}")
        result["ready_s"] = server.ready_s
        if server.arm.name == "ar":
            wanted.extend(baseline(server, prompts))
        if not wanted:
            raise RuntimeError("AR's outputs are missing")
        result |= measure(server, prompts, wanted, num_samples)
    except Exception as error:  # the other servers are still worth their time
        result["error"] = f"{type(error).__name__}: {error}"
        print(f"--- {server.arm.name}: {result['error']}\n{server.tail(40)}", flush=True)
    return result | {"log": server.telling_lines()}


def report(name: str, result: dict[str, Any]) -> None:
    """One server's result, shortly."""
    shown = {key: value for key, value in result.items() if key not in HIDDEN}
    for kind in KINDS:
        shown[kind] = [one for one in result.get(kind, []) if not one["equal"]]
    print(f"=== {name}: {json.dumps(shown)}", flush=True)
    for line in result.get("log", []):
        if "DDTree" in line or "num_tokens_per_req" in line or "cuda graph" in line:
            print(f"    {line[:200]}", flush=True)


def conclude(summary: dict[str, Any]) -> bool:
    """Whether every gate is passed; prints which are not."""
    line = summary.get("dflash", {})
    passed = True
    for name in ("chain-eager", "chain"):
        chain = summary.get(name, {})
        if "single_ids" in chain and "single_ids" in line:
            chain["same_ids_as_dflash"] = chain["single_ids"] == line["single_ids"]
            chain["same_acceptance_as_dflash"] = chain["single_acceptance"] == line["single_acceptance"]
            print(f"{name}: same ids as dflash {chain['same_ids_as_dflash']}, "
                  f"same acceptance {chain['same_acceptance_as_dflash']}")  # fmt: skip
    with_overlap, without = (summary.get(name, {}) for name in SAME_WHEN_FRESH)
    if "fresh_ids" in with_overlap and "fresh_ids" in without:
        for place, pair in enumerate(zip(with_overlap["fresh_ids"], without["fresh_ids"], strict=True)):
            if pair[0][0] != pair[1][0]:
                without["faults"].append(f"fresh {place}: another output than {SAME_WHEN_FRESH[0]}'s")
    for name, result in summary.items():
        for fault in [*result.get("faults", []), *filter(None, [result.get("error")])]:
            passed = False
            print(f"FAULT {name}: {fault}")
    for name, result in summary.items():
        if "single_tok_s" in result:
            tau = result["single_acceptance"].get("tau"), result["batch_acceptance"].get("tau")
            equal = (
                sum(one["equal"] for one in result["single"]),
                sum(one["equal"] for one in result["batch"]),
            )
            print(f"{name:12} ready {result['ready_s']} s, tok/s {result['single_tok_s']} single "
                  f"{result['batch_tok_s']} batch, tau {tau}, equal {equal[0]}/5 {equal[1]}/8")  # fmt: skip
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("gates.json"))
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "sglang-ddtree-gates")
    parser.add_argument("--python", default=sys.executable, help="interpreter of SGLang's environment")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tp", type=int, default=1, help="GPUs of every server")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--one-by-one", action="store_true", help="start a server when the last has ended")
    order.add_argument("--together", action="store_true", help="start AR's beside the others too")
    parser.add_argument("--part", choices=("1", "2", "both"), default="both")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), help="arms, ar among them: ar,dflash,b16"
    )
    parser.add_argument("--samples", type=int, default=400, help="short outputs drawn at temperature 1")
    parser.add_argument("--start-limit-s", type=float, default=200)
    parser.add_argument("--limit-s", type=float, default=480)
    options = parser.parse_args()
    deadline = time.monotonic() + options.limit_s
    options.logs.mkdir(parents=True, exist_ok=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {}
    if options.part != "2":
        command = [options.python, str(HERE / "sglang_ddtree_kernels.py"), str(options.logs / "kernels.json")]
        try:
            code = subprocess.run(command, timeout=150, check=False).returncode
            summary["kernels"] = {"faults": [] if code == 0 else [f"exit {code}"]}
        except subprocess.TimeoutExpired as error:
            summary["kernels"] = {"faults": [str(error)]}
        if (options.logs / "kernels.json").exists():
            summary["kernels"]["measured"] = json.loads((options.logs / "kernels.json").read_text())
        options.output.write_text(json.dumps(summary, indent=1))
    if options.part != "1":
        run_servers(options, summary, deadline)
    passed = conclude(summary)
    options.output.write_text(json.dumps(summary, indent=1))
    print("PASSED" if passed else "NOT PASSED")
    sys.exit(not passed)


if __name__ == "__main__":
    main()
