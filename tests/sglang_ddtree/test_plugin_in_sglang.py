"""The plugin inside SGLang 0.5.17, on a CPU: registration, hooks, and all names that it takes from SGLang."""

import ast
import inspect
import json
import os
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt.plugins", reason="SGLang has an environment of its own")

import torch
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
from sglang.srt import runtime_context
from sglang.srt.distributed.parallel_state import GroupCoordinator
from sglang.srt.layers.vocab_parallel_embedding import (
    VocabParallelEmbedding,
    VocabParallelEmbeddingShardIndices,
)
from sglang.srt.managers import schedule_batch
from sglang.srt.mem_cache import kv_cache_configurator
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative import dflash_info_v2, dflash_utils
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang_ddtree.growing import KernelTreeBuilder
from sglang_ddtree.kernels import move_rows_at_once, row_sizes
from sglang_ddtree.shards import Group
from sglang_ddtree.trees import TreeBuilder, accept, find_moves, rank_tokens, write_tree_mask
from tests.sglang_ddtree.batched_trees import KINDS, NUM_POSITIONS, make_logits, move_rows, random_trees

import sglang_ddtree
from sglang_ddtree import algorithm, draft_input

SOURCE = Path(sglang_ddtree.__file__).parent


@pytest.fixture(scope="module", autouse=True)
def registered():
    sglang_ddtree.register()
    sglang_ddtree.register()
    HookRegistry.apply_hooks()


@pytest.fixture
def server_args(monkeypatch):
    """Set what SGLang's process-wide options say."""

    def publish(**fields):
        values = {"speculative_algorithm": "DDTREE_OOT", "speculative_dflash_block_size": 16} | fields
        args = type("Args", (), values)()
        monkeypatch.setattr(runtime_context._CONTEXT, "_server_args", args)
        return args

    return publish


def test_the_name_is_known_once_it_is_registered():
    found = SpeculativeAlgorithm.from_string("ddtree_oot")
    assert isinstance(found, algorithm.DDTreeAlgorithm)
    assert found.supports_overlap
    assert found.is_dflash_family()
    assert not found.is_eagle()


def test_everything_that_sglang_asks_of_its_own_algorithms_can_be_asked():
    ours = set(dir(algorithm.DDTreeAlgorithm))
    own = {name for name in vars(SpeculativeAlgorithm) if not name.startswith("_") and name.islower()}
    assert own - ours <= {"from_string", "register"}


@pytest.mark.parametrize(("name", "expected"), [("DDTREE_OOT", True), ("DFLASH", False)])
def test_the_mask_is_captured_for_trees_only(server_args, name, expected):
    server_args(speculative_algorithm=name)
    backend = type("TritonAttnBackend", (), {})()
    assert dflash_utils.resolve_dflash_verify_mask_policy(backend) == ("TritonAttnBackend", expected)


@pytest.mark.parametrize(
    ("name", "width", "reserve"), [("DDTREE_OOT", 9, 32), ("DDTREE_OOT", 65, 130), ("DFLASH", 9, 18)]
)
def test_slots_cover_a_block_and_rows_cover_what_is_reserved(server_args, name, width, reserve):
    args = server_args(
        speculative_algorithm=name,
        speculative_num_steps=1,
        speculative_eagle_topk=1,
        max_speculative_num_draft_tokens=width,
        page_size=1,
    )
    assert schedule_batch.get_alloc_reserve_per_decode() == reserve
    extra = kv_cache_configurator.get_req_to_token_extra_context_len(args)
    assert extra == (reserve if name == "DDTREE_OOT" else 4 + width)


def test_the_two_widths_belong_to_target_and_drafter(monkeypatch):

    bag = type("Bag", (), {"speculative_dflash_block_size": 16})()
    monkeypatch.setattr(runtime_context, "get_spec", lambda: bag)
    found = SpeculativeAlgorithm.from_string("DDTREE_OOT")
    assert found.get_num_tokens_per_req_for_target_verify(65, False) == 65
    assert found.get_num_tokens_per_req_for_target_verify(65, True) == 16


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Configurations of a target and of a drafter; nothing more is read of them here."""
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    }
    target = shape | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    drafter = shape | {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 16}
    folders = []
    for name, config in (("target", target), ("drafter", drafter)):
        folders.append(tmp_path_factory.mktemp(name))
        (folders[-1] / "config.json").write_text(json.dumps(config))
    return folders


def parse_options(models, *more):
    """What SGLang makes of a launch line."""
    line = [
        *("--model-path", str(models[0]), "--speculative-draft-model-path", str(models[1])),
        *("--device", "cuda", "--attention-backend", "triton", "--page-size", "1"),
        *("--grammar-backend", "none", "--mem-fraction-static", "0.5"),
        *("--speculative-algorithm", "DDTREE_OOT", *more),
    ]
    return prepare_server_args(line)


@pytest.mark.parametrize("width", [9, 13, 16, 17, 65])
@pytest.mark.parametrize("block", [(), ("--speculative-dflash-block-size", "16")])
def test_sglang_takes_a_tree_of_any_width_beside_the_drafters_block(models, width, block):
    found = parse_options(models, "--speculative-num-draft-tokens", str(width), *block)
    assert (found.speculative_num_draft_tokens, found.speculative_dflash_block_size) == (width, 16)
    assert (found.speculative_eagle_topk, found.speculative_num_steps) == (1, 1)
    assert not found.disable_overlap_schedule


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_sglang_takes_trees_on_several_gpus(models, tp):
    found = parse_options(models, "--speculative-num-draft-tokens", "17", "--tp-size", str(tp))
    assert (found.tp_size, found.speculative_num_draft_tokens) == (tp, 17)


def test_a_drafters_options_can_have_another_width(models):
    """The worker gives the drafter's runner a copy whose width is the block's; the target's stays."""
    found = parse_options(models, "--speculative-num-draft-tokens", "65")
    assert found.max_speculative_num_draft_tokens == 65
    copy = deepcopy(found)
    vars(copy).pop("max_speculative_num_draft_tokens")
    copy.override("test", speculative_num_draft_tokens=16)
    assert (copy.max_speculative_num_draft_tokens, found.speculative_num_draft_tokens) == (16, 65)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ((), "--speculative-num-draft-tokens: expected the nodes of a tree with its root"),
        (("--tp-size", "2", "--dp-size", "2"), "--dp-size: expected 1 with DDTREE_OOT, got 2"),
        (("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"), "does not support dp attention"),
        (("--attention-backend", "fa3"), "--attention-backend: expected triton, whose kernel takes a tree"),
    ],
)
def test_a_launch_that_cannot_work_ends_in_one_sentence(models, more, sentence):
    width = ("--speculative-num-draft-tokens", "17") if more else ()
    with pytest.raises(ValueError, match=sentence):
        parse_options(models, *width, *more)


@pytest.mark.parametrize(("width", "reserve"), [(9, 32), (13, 32), (16, 32), (17, 34), (65, 130)])
def test_every_round_has_slots_for_a_block_and_a_tree_twice(monkeypatch, width, reserve):
    bag = SimpleNamespace(speculative_num_draft_tokens=width, speculative_dflash_block_size=16)
    calls = []

    def allocate(_tree_cache, _pool, *, reqs, cur_kv_lens, nxt_kv_lens, num_needed_tokens, **_):
        held = [req.kv.kv_allocated_len for req in reqs]
        assert cur_kv_lens.tolist() == held
        assert sum(nxt_kv_lens.tolist()) - sum(held) == num_needed_tokens
        calls.append(num_needed_tokens)
        for req, length in zip(reqs, nxt_kv_lens.tolist(), strict=True):
            req.kv.kv_allocated_len = length

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    for module in (draft_input, dflash_info_v2):
        monkeypatch.setattr(module, "get_spec", lambda: bag)
        monkeypatch.setattr(module, "alloc_for_spec_decode", allocate)
    params = SimpleNamespace(top_k=1)
    reqs = [
        SimpleNamespace(
            kv_committed_len=length, kv=SimpleNamespace(kv_allocated_len=held), sampling_params=params
        )
        for length, held in ((100, 100), (7, 30), (50, 50 + reserve))
    ]
    batch = SimpleNamespace(
        reqs=reqs,
        device="cpu",
        batch_size=lambda: 3,
        tree_cache=None,
        req_to_token_pool=None,
        req_pool_indices=torch.tensor([1, 2, 3]),
        token_to_kv_pool_allocator=SimpleNamespace(page_size=1),
    )
    state = draft_input.DDTreeDraftInput.create_idle_input("cpu")
    for committed in (0, 5):
        for req in reqs:
            req.kv_committed_len += committed
        state.prepare_for_decode(batch)
        assert all(req.kv.kv_allocated_len >= req.kv_committed_len + reserve for req in reqs)
        assert state.reserved_seq_lens_cpu.tolist() == [req.kv.kv_allocated_len for req in reqs]
        assert batch.seq_lens_cpu.tolist() == [req.kv_committed_len for req in reqs]
    assert [req.kv.kv_allocated_len - req.kv_committed_len for req in reqs] == [reserve] * 3
    assert len(calls) == (4 if width < 16 else 2)


def parse(name):
    return ast.parse((SOURCE / f"{name}.py").read_text())


def attributes_of_self(tree):
    """Names after `self.`, and those that are set there."""
    nodes = [
        n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "self"
    ]
    return {n.attr for n in nodes}, {n.attr for n in nodes if isinstance(n.ctx, ast.Store)}


def test_no_attribute_of_the_worker_is_looked_up_elsewhere_by_mistake():
    """Its base looks unknown attributes up in the target's worker, so that a misspelt one goes unnoticed."""
    worker = import_module("sglang_ddtree.worker")
    base = worker.DFlashWorkerV2
    _, set_by_base = attributes_of_self(ast.parse(inspect.getsource(base)))
    used, set_here = attributes_of_self(parse("worker"))
    assert used - set_here - set_by_base - set(dir(worker.DDTreeWorker)) == set()


@pytest.mark.parametrize(
    "method",
    [
        "__init__",
        "init_attention_backends",
        "init_cuda_graphs",
        "_maybe_build_draft_sampler",
        "_make_next_draft_input_prefill",
        "_make_next_draft_input_decode",
        "forward_batch_generation",
    ],
)
def test_methods_that_replace_the_bases_take_the_same_arguments(method):
    worker = import_module("sglang_ddtree.worker")
    ours, base = (inspect.signature(vars(c)[method]) for c in (worker.DDTreeWorker, worker.DFlashWorkerV2))
    assert list(ours.parameters) == list(base.parameters)


def test_a_group_and_a_head_of_sglang_have_what_is_asked_of_them():
    for name in ("all_gather", "broadcast"):
        ours, theirs = (inspect.signature(getattr(c, name)).parameters for c in (Group, GroupCoordinator))
        assert list(ours) == list(theirs)[: len(ours)]
    fields = set(Group.__annotations__) | {"num_added_elements", "num_org_elements", "org_vocab_start_index"}
    known = {*GroupCoordinator.__annotations__, *dir(VocabParallelEmbeddingShardIndices)}
    known |= set(VocabParallelEmbeddingShardIndices.__annotations__)
    assert fields - known == set()
    _, set_by_head = attributes_of_self(ast.parse(inspect.getsource(VocabParallelEmbedding)))
    assert {"shard_indices", "org_vocab_size", "tp_size"} - set_by_head == set()


@pytest.mark.parametrize("name", ["worker", "draft_input", "targets", "algorithm"])
def test_calls_into_sglang_use_arguments_that_exist(name):
    module = import_module(f"sglang_ddtree.{name}")
    checked = 0
    for call in ast.walk(parse(name)):
        function = getattr(module, getattr(getattr(call, "func", None), "id", ""), None)
        if not isinstance(call, ast.Call) or not getattr(function, "__module__", "").startswith("sglang.srt"):
            continue
        parameters = inspect.signature(function).parameters
        assert {keyword.arg for keyword in call.keywords} - set(parameters) == set(), ast.unparse(call.func)
        required = [p.name for p in parameters.values() if p.default is p.empty]
        given = [*list(parameters)[: len(call.args)], *(keyword.arg for keyword in call.keywords)]
        assert set(required) - set(given) == set(), ast.unparse(call.func)
        checked += 1
    assert checked >= {"worker": 5, "draft_input": 2, "targets": 4, "algorithm": 0}[name]


interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")


@interpreted
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 8, 16, 64])
def test_the_kernel_grows_the_same_trees_as_many_launches(budget, kind):
    log_probs, token_ids = rank_tokens(make_logits(kind), budget)
    roots = torch.tensor([5, 6, 7])
    found = KernelTreeBuilder(NUM_POSITIONS, budget, "cpu")(log_probs, token_ids, roots)
    expected = TreeBuilder(NUM_POSITIONS, budget, "cpu")(log_probs, token_ids, roots)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@interpreted
def test_impossible_tokens_are_taken_last_and_only_once():
    log_probs = torch.full((1, 2, 6), -torch.inf)
    log_probs[0, :, 0] = 0.0
    token_ids = torch.arange(12).view(1, 2, 6)
    trees = KernelTreeBuilder(2, 6, "cpu")(log_probs, token_ids, torch.tensor([99]))
    assert trees.tokens[0, :3].tolist() == [99, 0, 6]
    nodes = list(zip(trees.parents[0].tolist(), trees.tokens[0].tolist(), strict=True))
    assert len(set(nodes)) == 7


@interpreted
def test_sglangs_attention_sees_the_prefix_and_the_ancestors_alone():
    """In float32, since the interpreter has no bfloat16; requests of different lengths, scattered slots."""
    width, heads, kv_heads, size, lens = 9, 4, 2, 16, torch.tensor([5, 70, 1])
    trees = random_trees(3, width, num_tokens=3, seed=1)
    q, k, v = (torch.randn(3 * width, n, size) for n in (heads, kv_heads, kv_heads))
    keys, values = (torch.randn(90, kv_heads, size) for _ in range(2))
    slots = torch.randperm(90)[: int(lens.sum())]
    ends = torch.cat([torch.zeros(1), lens.cumsum(0)]).int()
    cells = width * (lens + width)
    mask = torch.zeros(int(cells.sum()), dtype=torch.uint8)
    write_tree_mask(mask, trees.ancestors, lens)
    out = torch.empty_like(q)
    starts = torch.cat([torch.zeros(1), cells.cumsum(0)]).long()
    rows = torch.arange(0, 4 * width, width).int()
    extend_attention_fwd(
        q, k, v, out, keys, values, rows, ends, slots, mask, True, starts, width, 1.0, 1.0
    )  # fmt: skip
    for i, own in enumerate(rows[:-1].tolist()):
        block, prefix = slice(own, own + width), slots[ends[i] : ends[i + 1]]
        seen_keys, seen_values = (
            torch.cat([cache[prefix], new[block]]).repeat_interleave(2, dim=1).transpose(0, 1)
            for cache, new in ((keys, k), (values, v))
        )
        visible = torch.cat([torch.ones(width, len(prefix), dtype=torch.bool), trees.ancestors[i]], dim=1)
        exact = torch.nn.functional.scaled_dot_product_attention(
            q[block].transpose(0, 1), seen_keys, seen_values, attn_mask=visible
        )
        assert torch.allclose(out[block].transpose(0, 1), exact, atol=1e-5)


@interpreted
def test_the_kernel_moves_what_two_launches_for_each_buffer_move():
    for seed, width in enumerate((2, 9, 17, 65)):
        trees = random_trees(3, width, num_tokens=2, seed=seed)
        kept = accept(trees, torch.randint(2, trees.tokens.shape), min(16, width))
        slots = (1 + torch.randperm(300)[: 3 * width]).view(3, width)
        buffers = [torch.randn(301, 3, 64).bfloat16(), torch.randn(301, 1, 70)]
        expected = [buffer.clone() for buffer in buffers]
        moves = find_moves(slots, kept)
        move_rows(expected, moves)
        sizes = row_sizes(buffers)
        addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
        move_rows_at_once(addresses, torch.tensor(sizes), max(sizes), moves)
        for found, wanted in zip(buffers, expected, strict=True):
            assert torch.equal(found, wanted)
