"""The plugin's tensors and kernels on a GPU, without a server. Run by `sglang_ddtree_gates.py`, or alone.

Every check returns what it measured and raises AssertionError where something is wrong.
"""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
# Not `tests.…`: some wheel in SGLang's environment may bring a package of that name.
sys.path[:0] = [
    str(ROOT / folder) for folder in ("workflow", "workflow/sglang_ddtree/src", "tests/sglang_ddtree")
]

from batched_trees import KINDS, make_logits, move_rows, random_trees  # noqa: E402
from sglang_ddtree.proposal import TreeProposer  # noqa: E402
from sglang_ddtree.shards import lower_halves, merge, offer  # noqa: E402
from sglang_ddtree.trees import (  # noqa: E402
    DraftTrees,
    TreeBuilder,
    accept,
    find_moves,
    rank_tokens,
    write_tree_mask,
)

BUDGETS = (1, 8, 12, 15, 16, 32, 64)
BLOCK = 16
VOCABULARY, HIDDEN = 49152, 576  # SmolLM2-135M
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64


def on_gpu(trees: DraftTrees) -> DraftTrees:
    return DraftTrees(*(field.cuda() for field in trees))


def check_functions() -> dict[str, Any]:
    """Trees, mask, acceptance and moves on the GPU equal those on the CPU, and nothing waits for the GPU."""
    num_compared = 0
    for budget in BUDGETS:
        cpu, gpu = TreeBuilder(BLOCK - 1, budget, "cpu"), TreeBuilder(BLOCK - 1, budget, "cuda")
        for kind in KINDS:
            log_probs, token_ids = rank_tokens(make_logits(kind, num_requests=8, seed=budget), budget)
            roots = torch.arange(8)
            expected = cpu(log_probs, token_ids, roots)
            given = log_probs.cuda(), token_ids.cuda(), roots.cuda()
            target = torch.randint(6, expected.tokens.shape)
            width, path_length = budget + 1, min(BLOCK, budget + 1)
            mixed = random_trees(8, width, num_tokens=6, seed=budget)
            lens = torch.randint(1, 300, (8,))
            slots = torch.randperm(8 * width).view(8, width)
            mask = torch.zeros(8 * width * (300 + width), dtype=torch.uint8)
            inputs = [on_gpu(mixed), target.cuda(), lens.cuda(), slots.cuda(), mask.cuda()]
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                found = gpu(*given)
                write_tree_mask(inputs[4], inputs[0].ancestors, inputs[2])
                kept = accept(inputs[0], inputs[1], path_length)
                moves = find_moves(inputs[3], kept)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            write_tree_mask(mask, mixed.ancestors, lens)
            wanted = accept(mixed, target, path_length)
            pairs = [*zip(found, expected, strict=True), (inputs[4], mask), *zip(kept, wanted, strict=True)]
            pairs.append((moves, find_moves(slots, wanted)))
            for one, other in pairs:
                assert torch.equal(one.cpu(), other), f"budget {budget}, {kind}: GPU and CPU differ"
                num_compared += 1
    return {"tensors_compared": num_compared}


def check_growing() -> dict[str, Any]:
    """The kernel grows the trees that many launches grow; where probabilities tie, equally probable ones."""
    from sglang_ddtree.growing import KernelTreeBuilder  # noqa: PLC0415

    num_same = num_compared = 0
    for budget in BUDGETS:
        one, many = (builder(BLOCK - 1, budget, "cuda") for builder in (KernelTreeBuilder, TreeBuilder))
        for kind in KINDS:
            for seed in range(8):
                blocks = rank_tokens(make_logits(kind, num_requests=8, seed=seed).cuda(), budget)
                roots = torch.arange(8, device="cuda")
                found, expected = one(*blocks, roots), many(*blocks, roots)
                same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
                assert same or kind != "random", f"budget {budget}: other trees"
                masses = [tree_masses(trees, blocks) for trees in (found, expected)]
                assert torch.allclose(*masses, rtol=1e-4), f"budget {budget}, {kind}: other masses"
                num_same += same
                num_compared += 1
    return {"same_batches": f"{num_same} of {num_compared}"}


def tree_masses(trees: DraftTrees, blocks: tuple[Tensor, Tensor]) -> Tensor:
    """Probability of all nodes of each tree, from their tokens and ancestors."""
    log_probs, token_ids = blocks
    level = (trees.depths - 1).clamp(min=0).unsqueeze(2).expand(-1, -1, token_ids.shape[2])
    is_token = token_ids.gather(1, level) == trees.tokens.unsqueeze(2)
    own = (log_probs.gather(1, level).double() * is_token).nan_to_num().sum(dim=2) * (trees.depths > 0)
    return (trees.ancestors.double() @ own.unsqueeze(2)).squeeze(2).exp().sum(dim=1)


def check_ranks() -> dict[str, Any]:
    """The most probable tokens of bf16 logits are as probable as a sort's, and really of that probability."""
    logits = torch.randn(8, BLOCK - 1, VOCABULARY, device="cuda").mul(4).bfloat16()
    for number in (1, 8, 64):
        log_probs, token_ids = rank_tokens(logits, number)
        exact = torch.log_softmax(logits.double(), dim=-1)
        assert torch.allclose(exact.gather(-1, token_ids), log_probs.double(), atol=1e-4), number
        assert torch.allclose(
            exact.sort(dim=-1, descending=True).values[..., :number], log_probs.double(), atol=1e-4
        )
        assert all((row.unique().numel() == number) for row in token_ids.flatten(0, 1)), number
    return {}


def check_parts() -> dict[str, Any]:
    """Parts of a vocabulary, all on one GPU, rank as the whole, equal logits by token, within graphs."""
    logits = torch.randn(8, BLOCK - 1, VOCABULARY, device="cuda").mul(4).bfloat16()
    exact = logits.cpu().float().sort(dim=-1, descending=True, stable=True).indices
    times = {}
    for number in (1, 16, 64):
        whole, _ = rank_tokens(logits, number)
        times[f"all, {number} ranks, batch 8"] = time_us(
            capture(lambda n=number: rank_tokens(logits, n)).replay
        )
        for num_parts in (2, 4, 8):
            values = torch.zeros_like(whole)
            token_ids = torch.zeros_like(whole, dtype=torch.int64)
            parts = split_vocabulary(logits, num_parts)

            def rank(into=(values, token_ids), parts=parts, number=number) -> None:
                merged = merge(torch.stack([offer(*part, number) for part in parts]))
                for fixed, found in zip(into, merged, strict=True):
                    fixed.copy_(found)

            capture(rank).replay()
            where = f"{num_parts} parts, {number} ranks"
            assert torch.equal(token_ids.cpu(), exact[..., :number]), f"{where}: other tokens"
            assert torch.allclose(values, whole, atol=1e-4), f"{where}: other probabilities"
            one = capture(lambda part=parts[0], n=number: offer(*part, n))
            times[f"one of {where}, batch 8"] = time_us(one.replay)
    return times


def split_vocabulary(logits: Tensor, num_parts: int) -> list[tuple[Tensor, Tensor]]:
    """Every part's logits and the lower halves of its candidates."""
    size = logits.shape[-1] // num_parts
    return [
        (part.contiguous(), lower_halves(i * size, size, part.device))
        for i, part in enumerate(logits.split(size, dim=-1))
    ]


def time_us(run: Callable[[], Any], repeats: int = 50) -> float:
    """GPU time of one call, in microseconds."""
    for _ in range(5):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return round(start.elapsed_time(end) * 1000 / repeats, 1)


def check_graph() -> dict[str, Any]:
    """A captured proposal gives the eager trees for new inputs; and what head, ranks and tree cost."""
    from sglang_ddtree.growing import KernelTreeBuilder  # noqa: PLC0415

    head = torch.randn(VOCABULARY, HIDDEN, device="cuda")
    results: dict[str, Any] = {}
    num_same = num_compared = 0
    with torch.inference_mode():
        for budget in (8, 16, 32, 64):
            for num_requests in (1, 8):
                proposer = TreeProposer(head, KernelTreeBuilder(BLOCK - 1, budget, "cuda"), BLOCK)
                proposer.reserve(8)
                hidden = torch.randn(num_requests * BLOCK, HIDDEN, device="cuda") / 4
                ids = torch.arange(num_requests * BLOCK, device="cuda")
                graph = capture(lambda p=proposer, h=hidden, i=ids: p(h, i))
                for _ in range(3):
                    hidden.copy_(torch.randn_like(hidden) / 4)
                    ids.add_(1)
                    graph.replay()
                    expected = proposer.propose(hidden, ids.view(-1, BLOCK)[:, 0])
                    pairs = zip(proposer.captured(num_requests), expected, strict=True)
                    num_same += all(torch.equal(one, other) for one, other in pairs)
                    num_compared += 1
                results[f"budget {budget}, batch {num_requests}"] = time_proposal(head, budget, num_requests)
    # A product may round otherwise within a graph, so that two nearly equal nodes change places.
    assert num_same >= num_compared - 2, f"{num_same} of {num_compared} captured trees are the eager ones"
    return {"same_trees": f"{num_same} of {num_compared}"} | results


def time_proposal(head: Tensor, budget: int, num_requests: int) -> dict[str, float]:
    """GPU microseconds in bf16: a captured proposal, DFlash's head alone, an eager proposal."""
    from sglang_ddtree.growing import KernelTreeBuilder  # noqa: PLC0415

    head = head.bfloat16()
    proposers = [
        TreeProposer(head, builder(BLOCK - 1, budget, "cuda"), BLOCK)
        for builder in (KernelTreeBuilder, TreeBuilder)
    ]
    for proposer in proposers:
        proposer.reserve(num_requests)
    kernel, many = proposers
    hidden = torch.randn(num_requests * BLOCK, HIDDEN, device="cuda", dtype=torch.bfloat16) / 4
    ids = torch.arange(num_requests * BLOCK, device="cuda")
    return {
        "graph_us": time_us(capture(lambda: kernel(hidden, ids)).replay),
        "graph_of_many_launches_us": time_us(capture(lambda: many(hidden, ids)).replay),
        "head_and_argmax_us": time_us(capture(lambda: (hidden @ head.T).argmax(dim=-1)).replay),
        "eager_us": time_us(lambda: kernel(hidden, ids), repeats=10),
    }


def capture(run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def attend(
    q: Tensor, k: Tensor, v: Tensor, cache: tuple[Tensor, Tensor], where: tuple[Tensor, ...]
) -> Tensor:
    """SGLang's extend kernel with a tree mask."""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd  # noqa: PLC0415

    qo_indptr, kv_indptr, kv_indices, mask, mask_indptr = where
    width = len(q) // (len(qo_indptr) - 1)
    out = torch.empty_like(q)
    extend_attention_fwd(
        q, k, v, out, *cache, qo_indptr, kv_indptr, kv_indices, mask, True, mask_indptr, width, 1.0, 1.0
    )
    return out


def check_attention() -> dict[str, Any]:
    """SGLang's kernel under this plugin's mask lets a row see the prefix and the node's ancestors alone."""
    worst, generator = 0.0, torch.Generator().manual_seed(0)
    for width in (2, 9, 17, 33, 65):
        for num_requests in (1, 3, 8):
            trees = on_gpu(random_trees(num_requests, width, num_tokens=6, seed=width))
            lens = torch.randint(1, 2049, (num_requests,), generator=generator)
            q, k, v = (
                torch.randn(num_requests * width, heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
                for heads in (HEADS, KV_HEADS, KV_HEADS)
            )
            total = int(lens.sum())
            cache = tuple(
                torch.randn(total + 7, KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
                for _ in range(2)
            )
            indices = torch.randperm(total, generator=generator).cuda()
            ends = F.pad(lens.cumsum(0), (1, 0))
            mask = torch.zeros(int((width * (lens + width)).sum()), dtype=torch.uint8, device="cuda")
            write_tree_mask(mask, trees.ancestors, lens.cuda())
            where = (
                torch.arange(0, (num_requests + 1) * width, width, dtype=torch.int32, device="cuda"),
                ends.to(torch.int32).cuda(),
                indices,
                mask,
                F.pad((width * (lens + width)).cumsum(0), (1, 0)).cuda(),
            )
            found = attend(q, k, v, cache, where).view(num_requests, width, HEADS, HEAD_DIM)
            for i in range(num_requests):
                rows = slice(i * width, (i + 1) * width)
                prefix = indices[ends[i] : ends[i + 1]]
                keys = torch.cat([cache[0][prefix], k[rows]]).float().repeat_interleave(HEADS // KV_HEADS, 1)
                values = (
                    torch.cat([cache[1][prefix], v[rows]]).float().repeat_interleave(HEADS // KV_HEADS, 1)
                )
                visible = F.pad(trees.ancestors[i], (int(lens[i]), 0), value=True)
                parts = (q[rows].float().transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1))
                exact = F.scaled_dot_product_attention(*(p.unsqueeze(0) for p in parts), attn_mask=visible)[0]
                worst = max(worst, float((found[i].float() - exact.transpose(0, 1)).abs().max()))
            assert worst < 0.03, f"width {width}, batch {num_requests}: differs by {worst}"
            check_one_bit(where, (q, k, v), cache, trees)
    return {"largest_difference": round(worst, 5)}


def check_one_bit(where: tuple[Tensor, ...], qkv: tuple[Tensor, ...], cache: Any, trees: DraftTrees) -> None:
    """A parent hidden from its last child changes that row and no other."""
    num_requests, width = trees.tokens.shape
    before = attend(*qkv, cache, where)
    hidden = trees.ancestors.clone()
    hidden[-1, width - 1, trees.parents[-1, width - 1]] = False
    lens = (where[1][1:] - where[1][:-1]).to(torch.int64)
    changed = where[3].clone()
    write_tree_mask(changed, hidden, lens)
    after = attend(*qkv, cache, (*where[:3], changed, where[4]))
    rows = (before != after).flatten(1).any(dim=1).nonzero().flatten().tolist()
    assert rows == [num_requests * width - 1], f"width {width}: rows {rows} changed"


def check_moves() -> dict[str, Any]:
    """The kernel that moves rows of all buffers at once does what two launches for each buffer do."""
    from sglang_ddtree.kernels import move_rows_at_once, row_sizes  # noqa: PLC0415

    num_slots = 8 * 65 + 1
    shapes = [(3, 64), (3, 64), (12, 64), (1, 8), (8, 128)]
    buffers = [torch.randn(num_slots, *shape, device="cuda").bfloat16() for shape in shapes]
    sizes = row_sizes(buffers)
    addresses = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64, device="cuda")
    row_bytes = torch.tensor(sizes, device="cuda")
    num_moved = 0
    for round_ in range(150):
        width = (9, 17, 33, 65)[round_ % 4]
        num_requests = 1 + round_ % 8
        trees = random_trees(num_requests, width, num_tokens=2, seed=round_ % 12)
        target = torch.randint(2, trees.tokens.shape)
        kept = accept(on_gpu(trees), target.cuda(), min(BLOCK, width))
        slots = (1 + torch.randperm(num_slots - 1)[: num_requests * width]).view(num_requests, width).cuda()
        moves = find_moves(slots, kept)
        expected = [buffer.clone() for buffer in buffers]
        move_rows(expected, moves)
        move_rows_at_once(addresses, row_bytes, max(sizes), moves)
        for one, other in zip(buffers, expected, strict=True):
            assert torch.equal(one, other), f"round {round_}: rows differ"
        num_moved += int((moves[0] != moves[1]).sum())
    assert num_moved > 500, f"only {num_moved} rows moved"
    layers = [torch.zeros(4096, 12, 64, device="cuda", dtype=torch.bfloat16) for _ in range(152)]
    addresses = torch.tensor([b.data_ptr() for b in layers], dtype=torch.uint64, device="cuda")
    row_bytes = torch.full((152,), 12 * 64 * 2, device="cuda")
    sources = torch.arange(8 * BLOCK, device="cuda").view(8, BLOCK) * 20
    moves = torch.stack([sources + 1, sources])
    return {
        "rows_moved": num_moved,
        "us_for_76_layers_batch_8": time_us(lambda: move_rows_at_once(addresses, row_bytes, 1536, moves)),
        "two_launches_each_us": time_us(lambda: move_rows(layers, moves), repeats=10),
    }


CHECKS = (check_functions, check_growing, check_ranks, check_parts, check_graph, check_moves, check_attention)


def main() -> None:
    """Run all checks and print one JSON object: by check, what it measured or why it failed."""
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for check in CHECKS:
        try:
            results[check.__name__] = {"ok": True} | check()
        except Exception as error:  # one failure must not hide the next check's result
            results[check.__name__] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
    print(json.dumps(results, indent=1))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results))
    sys.exit(not all(r["ok"] for r in results.values() if isinstance(r, dict)))


if __name__ == "__main__":
    main()
