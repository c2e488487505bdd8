"""The worker's start on a CPU: what it gives to DFlash's worker, what it looks at, and what it says."""

import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt.plugins", reason="SGLang has an environment of its own")

import torch
from sglang_ddtree.worker import DDTreeWorker, DFlashWorkerV2

from sglang_ddtree import worker as worker_module


class Args:
    """Options as far as the worker's start needs them; SGLang's refuse plain assignment."""

    def __init__(self, width):
        self.speculative_num_draft_tokens = width
        self.speculative_dflash_block_size = 16
        self.max_speculative_num_draft_tokens = width

    def override(self, _source, **fields):
        vars(self).update(fields)


def make_target(num_gpus):
    """A target whose runner has what its attention and cache are asked for."""
    cache = type("MHATokenToKVPool", (), {"kv_cache_layout": "nhd", "is_quantized_kv_cache": False})()
    cache.k_buffer = cache.v_buffer = [torch.zeros(10, 3, 64, dtype=torch.bfloat16)]
    backend = type("TritonAttnBackend", (), {"verify_mask": None})()
    shard = SimpleNamespace(num_added_elements=0, num_org_elements=180, org_vocab_start_index=200)
    head = SimpleNamespace(
        weight=torch.zeros(200, 8), shard_indices=shard, org_vocab_size=380, tp_size=num_gpus
    )
    runner = SimpleNamespace(
        model=SimpleNamespace(lm_head=head),
        attn_backend=backend,
        token_to_kv_pool=cache,
        sliding_window_size=None,
        decode_cuda_graph_runner=None,
    )
    return SimpleNamespace(model_runner=runner)


@pytest.fixture
def start(monkeypatch):
    """Make a worker up to its graphs, DFlash's part left out."""
    given = {}

    def base_init(worker, server_args, *rest):
        *others, target_worker = rest
        given.update(server_args=server_args, rest=tuple(others))
        worker.device, worker.block_size = "cpu", server_args.speculative_num_draft_tokens
        worker._target_worker, worker._draft_sampler = target_worker, None
        worker.draft_model_runner = SimpleNamespace(decode_cuda_graph_runner=None)

    monkeypatch.setattr(DFlashWorkerV2, "__init__", base_init)
    monkeypatch.setattr(DFlashWorkerV2, "init_attention_backends", lambda _worker: None)
    monkeypatch.setattr(DFlashWorkerV2, "init_cuda_graphs", lambda _worker: None)
    decode = SimpleNamespace(backend="full", bs=[1, 2, 4])
    config = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=decode)))
    monkeypatch.setattr(worker_module, "get_exec", lambda: config)

    def make(width, *, has_graphs=True, num_gpus=1, rank=0):
        group = SimpleNamespace(world_size=num_gpus, rank_in_group=rank)
        monkeypatch.setattr(worker_module, "get_tp_group", lambda: group)
        decode.backend = "full" if has_graphs else "disabled"
        args = Args(width)
        worker = DDTreeWorker(args, 0, "ps", 1234, target_worker=make_target(num_gpus))
        worker.init_attention_backends()
        return worker, args, given

    return make


def capture_graphs(worker, *, width, has_mask, monkeypatch):
    mask = SimpleNamespace(
        mode=SimpleNamespace(name="FULL_MASK"), buffer=torch.zeros(9, dtype=torch.uint8), max_bs=4
    )
    runner = worker._target_worker.model_runner
    runner.attn_backend.verify_mask = mask
    runner.decode_cuda_graph_runner = SimpleNamespace(captured_req_width=width)
    worker.draft_model_runner.decode_cuda_graph_runner = SimpleNamespace(captured_req_width=16)
    policy = "resolve_dflash_verify_mask_policy"
    monkeypatch.setattr(worker_module, policy, lambda _backend: ("TritonAttnBackend", has_mask))
    worker.init_cuda_graphs()


@pytest.mark.parametrize("width", [9, 65])
def test_the_drafter_gets_its_block_and_the_target_keeps_the_trees_width(start, width):
    worker, args, given = start(width)
    drafter_args = given["server_args"]
    assert drafter_args.speculative_num_draft_tokens == worker.block_size == 16
    assert not hasattr(drafter_args, "max_speculative_num_draft_tokens")  # computed anew from the 16
    assert args.speculative_num_draft_tokens == worker._width == width
    assert worker.server_args is args
    assert given["rest"] == (0, "ps", 1234)
    assert worker._path_length == min(16, width)
    assert worker._max_row_bytes == 3 * 64 * 2


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        (None, "TreeBuilder"),
        ("SGLANG_DDTREE_KERNEL", "KernelTreeBuilder"),
        ("SGLANG_DDTREE_CHAIN", "ChainBuilder"),
    ],
)
def test_the_log_says_what_makes_the_trees_and_what_was_captured(start, monkeypatch, caplog, variable, name):
    if variable:
        monkeypatch.setenv(variable, "1")
    caplog.set_level(logging.INFO)
    worker, _, _ = start(16)
    assert caplog.messages == []
    capture_graphs(worker, width=16, has_mask=True, monkeypatch=monkeypatch)
    ranks = 1 if name == "ChainBuilder" else 15
    assert caplog.messages == [
        f"DDTree: budget 15, width 16, block 16, ranks {ranks}, {name}, GPUs 1; captured: target 16, "
        "drafter 16, with a tree mask; mask cells 9, batches to 4"
    ]


def test_on_several_gpus_all_rank_their_parts_together_and_the_first_one_says_so(start, caplog):
    caplog.set_level(logging.INFO)
    alone, _, _ = start(17, has_graphs=False)
    assert alone._proposer._rank is worker_module.rank_tokens
    for rank in range(4):
        worker, _, _ = start(17, has_graphs=False, num_gpus=4, rank=rank)
        assert isinstance(worker._proposer._rank, worker_module.ShardRanking)
        assert worker._proposer._head.shape == (180, 8)
    assert [("GPUs 1;" in line, "GPUs 4;" in line) for line in caplog.messages] == [
        (True, False),
        (False, True),
    ]


def test_without_graphs_the_log_says_so(start, caplog):
    caplog.set_level(logging.INFO)
    worker, _, _ = start(17, has_graphs=False)
    worker.init_cuda_graphs()
    assert len(caplog.messages) == 1
    assert "captured: none, CUDA graphs are off; mask cells none yet, batches to any" in caplog.text


@pytest.mark.parametrize(
    ("width", "has_mask", "got"), [(17, False, "17, 16 and no mask"), (16, True, "16, 16")]
)
def test_graphs_that_would_ignore_the_tree_end_the_start(start, monkeypatch, width, has_mask, got):
    worker, _, _ = start(17)
    with pytest.raises(RuntimeError, match=f"expected widths 17 .* got {got}"):
        capture_graphs(worker, width=width, has_mask=has_mask, monkeypatch=monkeypatch)


def test_graphs_get_tensors_for_their_largest_batch(start):
    worker, _, _ = start(17)
    proposer = worker._maybe_build_draft_sampler()
    assert proposer is worker._proposer
    assert proposer.captured(4).ancestors.shape == (4, 17, 17)


def test_a_batch_beyond_the_captured_ones_has_a_mask_of_its_own(start, monkeypatch):
    worker, _, _ = start(3)
    capture_graphs(worker, width=3, has_mask=True, monkeypatch=monkeypatch)
    shared = worker._target_worker.model_runner.attn_backend.verify_mask
    shared.fits = lambda num_requests: num_requests <= 1
    shared.buffer = torch.zeros(60, dtype=torch.uint8)
    trees = SimpleNamespace(ancestors=torch.ones(2, 3, 3, dtype=torch.bool))
    one = SimpleNamespace(ancestors=trees.ancestors[:1])
    assert worker._mask(one, torch.tensor([5]), 5) is shared.buffer
    own = worker._mask(trees, torch.tensor([5, 6]), 11)
    assert own is not shared.buffer
    assert len(own) >= 3 * (5 + 3) + 3 * (6 + 3)
    assert own.sum() == 18
