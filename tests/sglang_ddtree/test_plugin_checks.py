"""What the plugin refuses: one sentence with what was expected, what was got, and what to do."""

from types import SimpleNamespace

import pytest
import torch

from sglang_ddtree import checks

FIELDS = {
    "tp_size": 8,
    "pp_size": 1,
    "dp_size": 1,
    "enable_dp_attention": False,
    "attn_cp_size": 1,
    "dcp_size": 1,
    "page_size": 1,
    "grammar_backend": "none",
    "disaggregation_mode": "null",
    "speculative_draft_window_size": None,
    "speculative_adaptive": False,
    "enable_lora": None,
    "enable_deterministic_inference": False,
    "enable_two_batch_overlap": False,
    "enable_pdmux": None,
    "enable_hisparse": False,
    "enable_unified_memory": False,
}
TRITON = ("triton", "triton", "triton")


def test_the_pipelines_own_launch_is_accepted():
    checks.check_server_args(SimpleNamespace(**FIELDS), TRITON)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("pp_size", 2, "--pp-size: expected 1 with DDTREE_OOT, got 2; change it, or draft with DFLASH"),
        ("enable_dp_attention", True, "--enable-dp-attention: expected off with DDTREE_OOT, got on"),
        ("page_size", 16, "--page-size: expected 1 with DDTREE_OOT, got 16"),
        ("grammar_backend", "xgrammar", "--grammar-backend: expected none with DDTREE_OOT, got xgrammar"),
        ("enable_lora", True, "--enable-lora: expected off with DDTREE_OOT, got on"),
        ("enable_deterministic_inference", True, "--enable-deterministic-inference: expected off"),
        ("speculative_draft_window_size", 512, "--speculative-draft-window-size: expected none"),
        ("disaggregation_mode", "decode", "--disaggregation-mode: expected null"),
    ],
)
def test_an_option_that_does_not_go_with_trees_is_named(field, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        checks.check_server_args(SimpleNamespace(**FIELDS | {field: value}), TRITON)


@pytest.mark.parametrize(
    "backends", [("fa3", "triton"), ("triton", None), ("triton", "triton", "flashinfer")]
)
def test_a_kernel_without_a_tree_mask_is_refused(backends):
    with pytest.raises(
        ValueError, match="--attention-backend: expected triton, whose kernel takes a tree mask"
    ):
        checks.check_server_args(SimpleNamespace(**FIELDS), backends)


@pytest.mark.parametrize("width", [2, 9, 13, 16, 17, 33, 65, 1025])
def test_every_budget_up_to_1024_has_a_width(width):
    checks.check_widths(width, 16)


@pytest.mark.parametrize("width", [None, 1, 1026])
def test_a_width_that_no_tree_has_is_refused(width):
    with pytest.raises(ValueError, match=f"2 to 1025, got {width}; for a budget of 32 nodes give 33"):
        checks.check_widths(width, 16)


def test_a_block_that_drafts_nothing_is_refused():
    with pytest.raises(ValueError, match="--speculative-dflash-block-size: expected at least 2, got 1"):
        checks.check_widths(17, 1)


def test_another_release_is_refused(monkeypatch):
    monkeypatch.setattr(checks.metadata, "version", {"sglang": "0.5.23"}.get)
    with pytest.raises(ValueError, match=r"expected 0\.5\.17 for DDTREE_OOT, got 0\.5\.23"):
        checks.check_release()


def make_runner(
    backend="TritonAttnBackend", pool="MHATokenToKVPool", layout="nhd", window=None, quantized=False
):
    cache = type(pool, (), {"kv_cache_layout": layout, "is_quantized_kv_cache": quantized})()
    return SimpleNamespace(
        attn_backend=type(backend, (), {})(), token_to_kv_pool=cache, sliding_window_size=window
    )


def test_full_attention_over_an_unquantized_cache_is_accepted():
    checks.check_target(make_runner())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"backend": "HybridLinearAttnBackend"},
            "expected full attention by TritonAttnBackend .* got Hybrid",
        ),
        ({"window": 1024}, "a sliding window of 1024; hybrid and sliding-window targets draft with DFLASH"),
        (
            {"pool": "MLATokenToKVPool"},
            "got MLATokenToKVPool, nhd; MLA and quantized caches draft with DFLASH",
        ),
        ({"layout": "hnd"}, "got MHATokenToKVPool, hnd"),
        ({"quantized": True}, "expected an unquantized cache"),
    ],
)
def test_a_target_whose_cache_or_attention_is_another_is_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        checks.check_target(make_runner(**given))


def make_mask(mode, dtype):
    return SimpleNamespace(mode=SimpleNamespace(name=mode), buffer=torch.zeros(4, dtype=dtype))


def test_only_a_full_mask_of_bytes_is_written():
    checks.check_mask(make_mask("FULL_MASK", torch.uint8))
    for other in (None, make_mask("QLEN_ONLY", torch.uint8), make_mask("FULL_MASK", torch.bool)):
        with pytest.raises(ValueError, match="expected a full verify mask of uint8"):
            checks.check_mask(other)


def make_head(added=0, dtype=torch.bfloat16, parts=1, start=0):
    shard = SimpleNamespace(num_added_elements=added, num_org_elements=100, org_vocab_start_index=start)
    head = SimpleNamespace(
        weight=torch.zeros(128, 4, dtype=dtype),
        shard_indices=shard,
        org_vocab_size=start + 100,
        tp_size=parts,
    )
    return SimpleNamespace(lm_head=head)


def test_padded_rows_of_the_head_are_no_tokens():
    assert checks.find_head(make_head(), 64, 1).weight.shape == (100, 4)
    plain = SimpleNamespace(lm_head=torch.nn.Linear(4, 128))
    assert checks.find_head(plain, 64, 1).weight.shape == (128, 4)


def test_a_part_of_the_head_knows_its_first_token_and_may_be_smaller_than_a_tree():
    weight, first_token = checks.find_head(make_head(parts=4, start=384), 484, 4)
    assert (weight.shape, first_token) == ((100, 4), 384)


@pytest.mark.parametrize(
    ("model", "num_ranks", "num_gpus", "sentence"),
    [
        (SimpleNamespace(), 8, 1, "expected an unquantized lm_head with DDTREE_OOT, got NoneType of None"),
        (make_head(dtype=torch.int8), 8, 1, "got SimpleNamespace of torch.int8"),
        (make_head(added=3), 8, 1, "expected no added vocabulary with DDTREE_OOT, got 3 tokens"),
        (make_head(), 101, 1, "expected at most the vocabulary's 100 tokens and the root, got 102"),
        (make_head(parts=2, start=100), 201, 2, "expected at most the vocabulary's 200 tokens"),
        (make_head(), 8, 2, "expected an lm_head in 2 parts, one a GPU, .* got SimpleNamespace in 1"),
        (SimpleNamespace(lm_head=torch.nn.Linear(4, 128)), 8, 4, "in 4 parts, .* got Linear in 1; set --tp"),
    ],
)
def test_a_head_that_cannot_rank_tokens_is_refused(model, num_ranks, num_gpus, sentence):
    with pytest.raises(ValueError, match=sentence):
        checks.find_head(model, num_ranks, num_gpus)
