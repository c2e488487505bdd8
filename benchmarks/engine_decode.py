"""What a step of the embedded engine costs, and how far it is from what the memory allows.

    python benchmarks/engine_decode.py --model-path models/target --draft-model-path resources/drafters/NAME
    python benchmarks/engine_decode.py ... --dtypes float32 --threads 1 --rounds 60
    python benchmarks/engine_decode.py ... --json results/engine.json

Everything that is compared runs in turns, one step of each after another, so that a disturbance hits
all alike; a figure is the median over the turns. All methods share one copy of the models, one slot each.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

from draftbench.engine.cache import KVCache
from draftbench.engine.config import read_drafter_config, read_target_config, require_fit
from draftbench.engine.drafter import Drafter
from draftbench.engine.huge_pages import ask_for_huge_pages
from draftbench.engine.layers import Linear
from draftbench.engine.llama import Llama
from draftbench.engine.profile import Profile
from draftbench.engine.proposer import Algorithm, Proposer
from draftbench.engine.request import Request, SamplingParams
from draftbench.engine.runner import ModelRunner
from draftbench.engine.sequence import Sequence
from draftbench.engine.weights import WeightReader
from draftbench.files import write_json

METHODS: dict[str, tuple[Algorithm | None, int]] = {
    "ar": (None, 0),
    "dflash": ("DFLASH", 15),
    "ddtree-b8": ("DDTREE", 8),
    "ddtree-b16": ("DDTREE", 16),
    "ddtree-b32": ("DDTREE", 32),
    "ddtree-b64": ("DDTREE", 64),
}
PROMPT = (
    "Write a Python function that reads a JSON file and returns the sum of its numbers. Explain each step."
)
CAPACITY = 1024
NUM_SLOTS = 8


class Models:
    """One target and one drafter with caches of eight slots, for any number of runners."""

    def __init__(self, options: argparse.Namespace, dtype: torch.dtype) -> None:
        cpu = torch.device("cpu")
        target_config = read_target_config(options.model_path)
        drafter_config = read_drafter_config(options.draft_model_path)
        require_fit(drafter_config, target_config, options.draft_model_path)
        reader = WeightReader(options.model_path, dtype, cpu)
        self.target = Llama(target_config, reader, CAPACITY, drafter_config.target_layer_ids)
        self.cache = KVCache(target_config.block, NUM_SLOTS, CAPACITY, dtype, cpu)
        self.drafter = Drafter(
            drafter_config,
            WeightReader(options.draft_model_path, dtype, cpu),
            self.target,
            KVCache(drafter_config.block, NUM_SLOTS, CAPACITY, dtype, cpu),
            drafter_config.block_size,
        )

    def runner(self, method: str) -> ModelRunner:
        """A runner of one method; runners of the same models may take turns."""
        algorithm, budget = METHODS[method]
        drafter = self.drafter if algorithm else None
        return ModelRunner(self.target, self.cache, Proposer(algorithm, drafter, budget), Profile())


def start(runner: ModelRunner, slot: int, prompt_ids: list[int]) -> Sequence:
    """A request in a slot, its prompt done."""
    params = SamplingParams(max_new_tokens=CAPACITY, ignore_eos=True)
    sequence = Sequence(Request(f"slot{slot}", tuple(prompt_ids), params), print, 0, frozenset(), [0] * 16)
    sequence.slot = slot
    runner.reserve(slot, 0)
    step(runner, [sequence])
    return sequence


def step(runner: ModelRunner, sequences: list[Sequence]) -> int:
    """One step; the number of tokens that it emitted."""
    return sum(len(sequence.emit(token_ids)) for sequence, token_ids, _ in runner.step(sequences))


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of a call, and its result."""
    start_s = time.perf_counter()
    result = action()
    return 1e3 * (time.perf_counter() - start_s), result


@contextmanager
def timed_products() -> Iterator[list[float]]:
    """Milliseconds of each product with weights that is made meanwhile."""
    times_ms: list[float] = []
    call = Linear.__call__

    def timed_call(weight: Linear, x: Tensor) -> Tensor:
        product_ms, product = timed(lambda: call(weight, x))
        times_ms.append(product_ms)
        return product

    Linear.__call__ = timed_call
    try:
        yield times_ms
    finally:
        Linear.__call__ = call


class CpuProfile(Profile):
    """Seconds of this thread's CPU time, in which other work on the machine counts less."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase."""
        start_s = time.thread_time()
        yield
        self.seconds[name] += time.thread_time() - start_s


def measure_rounds(models: Models, prompt_ids: list[int], num_rounds: int) -> dict[str, Any]:
    """Milliseconds of a round of each method, in turns, with its phases and tokens per round."""
    runners = {name: models.runner(name) for name in METHODS}
    sequences = {name: start(runners[name], slot, prompt_ids) for slot, name in enumerate(METHODS)}
    times_ms: dict[str, list[float]] = {name: [] for name in METHODS}
    emitted = dict.fromkeys(METHODS, 0)
    for turn in range(num_rounds + 3):
        for name, runner in runners.items():
            runner.profile.is_on = turn >= 3
            round_ms, num_tokens = timed(lambda r=runner, n=name: step(r, [sequences[n]]))
            if turn >= 3:
                times_ms[name].append(round_ms)
                emitted[name] += num_tokens
    ar_ms = median(times_ms["ar"])
    return {
        name: {
            "round_ms": median(times_ms[name]),
            "relative_to_ar": median(times_ms[name]) / ar_ms,
            "tokens_per_round": emitted[name] / num_rounds,
            "phases_ms": runners[name].profile.round_ms(),
        }
        for name in METHODS
    }


def measure_bookkeeping(models: Models, prompt_ids: list[int], num_rounds: int) -> dict[str, float]:
    """CPU milliseconds of a round for all but the forwards of both models, by method, with one thread.

    The same rounds are run seven times, and of each round the least counts.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {}
    for name in ("dflash", "ddtree-b16", "ddtree-b64"):
        runner = models.runner(name)
        runner.profile = CpuProfile()
        runs = []
        for _ in range(7):
            sequence = start(runner, 0, prompt_ids)
            runs.append([bookkeeping_ms(runner, sequence) for _ in range(num_rounds)])
        found[name] = fmean(min(times_ms) for times_ms in zip(*runs, strict=True))
    torch.set_num_threads(num_threads)
    return found


def bookkeeping_ms(runner: ModelRunner, sequence: Sequence) -> float:
    """CPU milliseconds of one round's phases build, sample and commit."""
    runner.profile.reset()
    step(runner, [sequence])
    phases_ms = runner.profile.round_ms()
    return phases_ms["build"] + phases_ms["sample"] + phases_ms["commit"]


def measure_concurrency(models: Models, prompt_ids: list[int], num_rounds: int) -> dict[str, Any]:
    """Total tokens per second of eight requests relative to one, in turns, by method.

    `products_ratio` is what the ratio would be if the products with weights, at the same numbers of rows,
    took all the time: what the processor has left for eight when it works for one.
    """
    found = {}
    for name in ("ar", "dflash", "ddtree-b16"):
        runner = models.runner(name)
        sequences = [start(runner, slot, prompt_ids) for slot in range(NUM_SLOTS)]
        turns: dict[int, list[tuple[int, float, float]]] = {1: [], NUM_SLOTS: []}
        for _ in range(num_rounds):
            for count, found_turns in turns.items():
                with timed_products() as products_ms:
                    step_ms, num_tokens = timed(lambda n=count, r=runner, s=sequences: step(r, s[:n]))
                found_turns.append((num_tokens, step_ms, sum(products_ms)))
        one, eight = (summarise_turns(found_turns) for found_turns in turns.values())
        found[name] = {
            "one": one,
            "eight": eight,
            "ratio": eight["tok_per_s"] / one["tok_per_s"],
            "products_ratio": NUM_SLOTS * one["products_ms"] / eight["products_ms"],
        }
    return found


def summarise_turns(turns: list[tuple[int, float, float]]) -> dict[str, float]:
    """Of turns as (tokens, milliseconds, those of the products): the mean rate, and medians."""
    return {
        "tok_per_s": sum(1e3 * num_tokens / step_ms for num_tokens, step_ms, _ in turns) / len(turns),
        "products_ms": median(products_ms for _, _, products_ms in turns),
        "products_share": median(products_ms / step_ms for _, step_ms, products_ms in turns),
    }


def measure_transformers(
    models: Models, options: argparse.Namespace, dtype: torch.dtype, prompt_ids: list[int]
) -> dict[str, float]:
    """Tokens per second of whole greedy generations, prompt included, by transformers and by the engine."""
    reference = LlamaForCausalLM.from_pretrained(options.model_path, dtype=dtype).eval()
    for weight in reference.parameters():
        weight.data = weight.data.clone()  # as ours: not the file's pages, which are small ones
    prompt = torch.tensor([prompt_ids])
    num_tokens = options.tokens

    def generate() -> None:
        reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
        )

    def decode() -> None:
        runner = models.runner("ar")
        sequence = start(runner, 0, prompt_ids)
        while sequence.num_output_tokens < num_tokens:
            step(runner, [sequence])

    theirs, ours = [], []
    for turn in range(4):
        pair = timed(generate)[0], timed(decode)[0]
        if turn:
            theirs.append(pair[0])
            ours.append(pair[1])
    return {
        "transformers_tok_per_s": 1e3 * num_tokens / median(theirs),
        "engine_tok_per_s": 1e3 * num_tokens / median(ours),
        "ratio": median(theirs) / median(ours),
    }


def measure_bandwidth(models: Models, dtype: torch.dtype, ar_ms: float) -> dict[str, float]:
    """How far an AR step is from the time in which memory delivers the weights that it reads."""
    block, vocab_size = models.target.config.block, models.target.config.vocab_size
    heads = 2 * (block.num_heads + block.num_kv_heads) * block.head_dim
    weights = block.num_layers * block.hidden_size * (heads + 3 * block.intermediate_size)
    num_bytes = (weights + vocab_size * block.hidden_size) * dtype.itemsize
    data = torch.ones(2**28)  # 1 GiB, more than any cache
    read_ms = median(timed(data.sum)[0] for _ in range(7))
    bytes_per_s = 1e3 * data.numel() * data.element_size() / read_ms
    limit_ms = 1e3 * num_bytes / bytes_per_s
    return {
        "read_gb_per_s": bytes_per_s / 1e9,
        "weights_per_token_mb": num_bytes / 1e6,
        "limit_ms": limit_ms,
        "ar_step_ms": ar_ms,
        "share_of_limit": limit_ms / ar_ms,
    }


@torch.inference_mode()
def measure(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """All figures of one dtype."""
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    tokenizer = AutoTokenizer.from_pretrained(options.model_path)
    messages = [{"role": "user", "content": PROMPT}]
    prompt_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    models = Models(options, dtype)
    rounds = measure_rounds(models, prompt_ids, options.rounds)
    return {
        "rounds": rounds,
        "bookkeeping_ms": measure_bookkeeping(models, prompt_ids, max(options.rounds // 3, 5)),
        "concurrency": measure_concurrency(models, prompt_ids, max(options.rounds // 3, 5)),
        "transformers": measure_transformers(models, options, dtype, prompt_ids),
        "bandwidth": measure_bandwidth(models, dtype, rounds["ar"]["round_ms"]),
    }


def lines_of(name: str, found: dict[str, Any]) -> list[str]:
    """One dtype's figures as text."""
    lines = [f"{name}: round in ms, relative to AR, tokens per round; draft, build, verify, sample, commit"]
    for method, row in found["rounds"].items():
        phases = "".join(f"{ms:8.2f}" for ms in row["phases_ms"].values())
        whole = f"{row['round_ms']:8.2f}{row['relative_to_ar']:6.2f}{row['tokens_per_round']:6.2f}"
        lines.append(f"  {method:<11}{whole}  {phases}")
    bookkeeping = ", ".join(f"{method} {ms:.2f}" for method, ms in found["bookkeeping_ms"].items())
    lines.append(f"  trees and bookkeeping, ms of one thread's CPU time: {bookkeeping}")
    for method, row in found["concurrency"].items():
        one, eight = row["one"], row["eight"]
        rates = f"{eight['tok_per_s']:.1f} tok/s with 8 requests, {one['tok_per_s']:.1f} with one"
        shares = f"{eight['products_share']:.0%} of the time with 8, {one['products_share']:.0%} with one"
        lines.append(f"  {method:<11}{rates}: {row['ratio']:.2f}x")
        lines.append(f"  {'':<11}products alone, {shares}: {row['products_ratio']:.2f}x")
    theirs, memory = found["transformers"], found["bandwidth"]
    rates = f"{theirs['engine_tok_per_s']:.1f} tok/s, transformers {theirs['transformers_tok_per_s']:.1f}"
    lines.append(f"  AR {rates}: {theirs['ratio']:.2f}x")
    weights = f"{memory['weights_per_token_mb']:.0f} MB a token at {memory['read_gb_per_s']:.1f} GB/s"
    limit = f"{memory['limit_ms']:.1f} ms, {memory['share_of_limit']:.0%} of the AR step's"
    lines.append(f"  {weights}: at least {limit} {memory['ar_step_ms']:.1f} ms")
    return lines


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--draft-model-path", type=Path, required=True)
    parser.add_argument(
        "--dtypes", nargs="+", choices=["bfloat16", "float32"], default=["bfloat16", "float32"]
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=40, help="turns of each comparison")
    parser.add_argument("--tokens", type=int, default=48, help="of each whole generation")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    found: dict[str, Any] = {"threads": options.threads, "torch": torch.__version__}
    for name in options.dtypes:
        found[name] = measure(options, name)
        sys.stdout.write("\n".join(lines_of(name, found[name])) + "\n")
        sys.stdout.flush()
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    ask_for_huge_pages()
    main()
