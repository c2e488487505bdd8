"""The DFlash drafter against a second implementation that shares nothing with it."""

import torch
from reference_drafter import draft_logits
from tiny_models import DRAFTER, TinyPair, target_features, write_drafter

from draftbench.engine.cache import KVCache
from draftbench.engine.config import read_drafter_config, read_target_config
from draftbench.engine.drafter import Drafter
from draftbench.engine.llama import Llama
from draftbench.engine.weights import WeightReader

CPU = torch.device("cpu")
LAYERS = DRAFTER["dflash_config"]["target_layer_ids"]
FIRST = [5, 9, 3, 30, 7, 7, 12, 4, 21, 8]
SECOND = [17, 6, 6]


def load(pair: TinyPair, block_size: int = 6) -> Drafter:
    target_config, config = read_target_config(pair.target_path), read_drafter_config(pair.drafter_path)
    target = Llama(target_config, WeightReader(pair.target_path, torch.float32, CPU), 64, ())
    cache = KVCache(config.block, 2, 64, torch.float32, CPU)
    reader = WeightReader(pair.drafter_path, torch.float32, CPU)
    return Drafter(config, reader, target, cache, block_size)


def reference(
    pair: TinyPair, tmp_path, committed: list[int], anchor: int, block_size: int = 6
) -> torch.Tensor:
    weights = write_drafter(tmp_path)  # the same seed, so the pair's own weights
    with torch.inference_mode():
        return draft_logits(pair.target, weights, {**DRAFTER, "block_size": block_size}, committed, anchor)


def features(pair: TinyPair, *texts: list[int]) -> torch.Tensor:
    return torch.cat([target_features(pair.target, text, LAYERS) for text in texts])


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_block_logits_equal_the_reference(pair, tmp_path):
    drafter = load(pair)
    drafter.extend_context(features(pair, FIRST), [1], [len(FIRST)])
    assert_close(drafter.propose([1], [14])[0], reference(pair, tmp_path, FIRST, 14))


def test_a_shorter_block_than_trained_equals_the_reference(pair, tmp_path):
    drafter = load(pair, block_size=3)
    drafter.extend_context(features(pair, FIRST), [0], [len(FIRST)])
    assert_close(drafter.propose([0], [14])[0], reference(pair, tmp_path, FIRST, 14, block_size=3))


def test_context_in_pieces_with_drafts_between_equals_context_at_once(pair, tmp_path):
    drafter = load(pair)
    rows = features(pair, FIRST)
    drafter.extend_context(rows[:4], [0], [4])
    drafter.propose([0], [FIRST[4]])  # its block must leave no trace
    drafter.extend_context(rows[4:], [0], [len(FIRST) - 4])
    assert_close(drafter.propose([0], [14])[0], reference(pair, tmp_path, FIRST, 14))


def test_requests_in_one_forward_do_not_see_each_other(pair, tmp_path):
    drafter = load(pair)
    drafter.extend_context(features(pair, FIRST, SECOND), [1, 0], [len(FIRST), len(SECOND)])
    got = drafter.propose([0, 1], [11, 14])
    assert_close(got[0], reference(pair, tmp_path, SECOND, 11))
    assert_close(got[1], reference(pair, tmp_path, FIRST, 14))


def test_context_rows_count_the_committed_tokens_and_blocks_do_not(pair):
    drafter = load(pair)
    drafter.extend_context(features(pair, FIRST, SECOND), [0, 1], [len(FIRST), len(SECOND)])
    drafter.propose([0, 1], [11, 14])
    assert drafter.cache.lengths == [len(FIRST), len(SECOND)]
