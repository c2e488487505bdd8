"""The target's forward against transformers' LlamaForCausalLM, in float32."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import LLAMA3_ROPE, TinyPair, target_features, target_logits, write_target
from transformers import LlamaForCausalLM

from draftbench.engine.cache import KVCache
from draftbench.engine.config import read_target_config
from draftbench.engine.layers import causal_bias, tree_bias
from draftbench.engine.llama import Llama, Rows
from draftbench.engine.tree import DraftTree, make_tree
from draftbench.engine.weights import WeightReader

CPU = torch.device("cpu")
PROMPT = [5, 9, 3, 30, 7, 7, 12, 4, 21, 8, 17, 6]
TOLERANCE = 1e-4


def load(path: Path, layers: tuple[int, ...] = (), num_slots: int = 3) -> tuple[Llama, KVCache]:
    config = read_target_config(path)
    model = Llama(config, WeightReader(path, torch.float32, CPU), 160, layers)
    return model, KVCache(config.block, num_slots, 160, torch.float32, CPU)


def consecutive(cache: KVCache, slot: int, token_ids: list[int]) -> Rows:
    start, count = cache.lengths[slot], len(token_ids)
    window = cache.window(slot, count, causal_bias(count, start, cache.rows.dtype, CPU))
    return Rows(torch.tensor(token_ids), torch.arange(start, start + count), [window])


def nodes(cache: KVCache, slot: int, tree: DraftTree) -> Rows:
    start = cache.lengths[slot]
    bias = tree_bias(torch.from_numpy(tree.ancestors), start, cache.rows.dtype)
    positions = start + torch.from_numpy(tree.depths)
    return Rows(torch.from_numpy(tree.tokens), positions, [cache.window(slot, len(tree), bias)])


def join(*parts: Rows) -> Rows:
    return Rows(
        torch.cat([part.token_ids for part in parts]),
        torch.cat([part.positions for part in parts]),
        [part.windows[0] for part in parts],
    )


def run(model: Llama, cache: KVCache, slot: int, token_ids: list[int]) -> torch.Tensor:
    """Logits of consecutive tokens, which become committed."""
    logits, _ = model.forward(consecutive(cache, slot, token_ids), torch.arange(len(token_ids)))
    cache.commit_path(slot, list(range(len(token_ids))))
    return logits


def a_tree(root: int) -> DraftTree:
    """A root with three children, of which two go on; eight nodes, four deep."""
    return make_tree([root, 4, 9, 11, 5, 6, 4, 9], [-1, 0, 0, 1, 1, 3, 5, 2])


@pytest.fixture(params=["plain", "llama3-rope", "tied-head", "one-kv-head"], scope="module")
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LlamaForCausalLM, Path]:
    overrides = {
        "plain": {},
        "llama3-rope": {"rope_parameters": LLAMA3_ROPE},
        "tied-head": {"tie_word_embeddings": True},
        "one-kv-head": {"num_key_value_heads": 1},
    }[request.param]
    path = tmp_path_factory.mktemp(request.param)
    return write_target(path, **overrides), path


def test_prefill_logits_equal_transformers(variant: tuple[LlamaForCausalLM, Path]) -> None:
    reference, path = variant
    prompt = (PROMPT * 8)[:90]  # past the length from which llama3 scaling stretches
    model, cache = load(path)
    torch.testing.assert_close(
        run(model, cache, 1, prompt), target_logits(reference, prompt), atol=TOLERANCE, rtol=0
    )


def test_chunked_prefill_and_decode_logits_equal_transformers(variant: tuple[LlamaForCausalLM, Path]) -> None:
    reference, path = variant
    model, cache = load(path)
    parts = [PROMPT[:5], PROMPT[5:9], *([token] for token in PROMPT[9:])]
    got = torch.cat([run(model, cache, 0, part) for part in parts])
    torch.testing.assert_close(got, target_logits(reference, PROMPT), atol=TOLERANCE, rtol=0)


def test_every_tree_node_has_the_logits_of_a_separate_run_of_its_path(
    variant: tuple[LlamaForCausalLM, Path],
) -> None:
    reference, path = variant
    model, cache = load(path)
    run(model, cache, 2, PROMPT)
    tree = a_tree(root=13)
    logits, _ = model.forward(nodes(cache, 2, tree), torch.arange(len(tree)))
    for node in range(len(tree)):
        tokens = tree.tokens[np.flatnonzero(tree.ancestors[node])].tolist()
        expected = target_logits(reference, PROMPT + tokens)[-1]
        torch.testing.assert_close(logits[node], expected, atol=TOLERANCE, rtol=0)


def test_decoding_goes_on_from_a_compacted_path_as_from_plain_tokens(pair: TinyPair) -> None:
    model, cache = load(pair.target_path)
    run(model, cache, 0, PROMPT)
    tree = a_tree(root=13)
    model.forward(nodes(cache, 0, tree), torch.arange(0))
    path = [0, 1, 3, 5]
    cache.commit_path(0, path)
    tokens = tree.tokens[path].tolist()
    expected = target_logits(pair.target, [*PROMPT, *tokens, 8])[-1]
    torch.testing.assert_close(run(model, cache, 0, [8])[0], expected, atol=TOLERANCE, rtol=0)


def test_requests_of_different_kinds_share_a_forward_without_seeing_each_other(pair: TinyPair) -> None:
    model, cache = load(pair.target_path)
    run(model, cache, 0, PROMPT)
    run(model, cache, 2, PROMPT[:3])
    tree = a_tree(root=13)
    rows = join(nodes(cache, 0, tree), consecutive(cache, 1, PROMPT[4:]), consecutive(cache, 2, [19]))
    logits, _ = model.forward(rows, torch.arange(len(rows.token_ids)))
    expected = [
        target_logits(pair.target, [*PROMPT, 13, 4])[-1:],
        target_logits(pair.target, PROMPT[4:]),
        target_logits(pair.target, [*PROMPT[:3], 19])[-1:],
    ]
    got = [logits[1:2], logits[len(tree) : -1], logits[-1:]]
    torch.testing.assert_close(torch.cat(got), torch.cat(expected), atol=TOLERANCE, rtol=0)


def test_features_are_the_residual_stream_after_the_layers_asked_for(pair: TinyPair) -> None:
    model, cache = load(pair.target_path, layers=(1, 3))
    _, features = model.forward(consecutive(cache, 0, PROMPT), torch.arange(0))
    # transformers norms the last layer's output, so only layers before it can be compared there
    expected = target_features(pair.target, PROMPT, [1])
    torch.testing.assert_close(features[:, :48], expected, atol=TOLERANCE, rtol=0)
    normed = target_features(pair.target, PROMPT, [3])
    torch.testing.assert_close(
        pair.target.model.norm(features[:, 48:]).detach(), normed, atol=TOLERANCE, rtol=0
    )


def test_bfloat16_logits_are_near_transformers_in_float32(pair: TinyPair) -> None:
    config = read_target_config(pair.target_path)
    model = Llama(config, WeightReader(pair.target_path, torch.bfloat16, CPU), 64, ())
    cache = KVCache(config.block, 1, 64, torch.bfloat16, CPU)
    logits = run(model, cache, 0, PROMPT)
    expected = target_logits(pair.target, PROMPT)
    relative = (logits.float() - expected).norm() / expected.norm()
    assert relative < 0.03  # bfloat16 keeps 8 bits of mantissa
