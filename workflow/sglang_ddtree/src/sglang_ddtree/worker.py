"""The worker of DDTree: DFlash's, whose verified line becomes a tree."""

import logging
import os
from copy import deepcopy
from typing import Any

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func
from sglang.kernels.ops.speculative.dflash import _prepare_dflash_draft_block_unchecked
from sglang.srt.distributed import get_tp_group
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.cuda_graph_config import Backend
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.runtime_context import get_exec
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_utils import resolve_dflash_verify_mask_policy
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch import Tensor

from sglang_ddtree.checks import check_mask, check_target, find_head
from sglang_ddtree.draft_input import DDTreeDraftInput
from sglang_ddtree.growing import KernelTreeBuilder
from sglang_ddtree.kernels import move_rows_at_once, row_sizes
from sglang_ddtree.proposal import TreeProposer
from sglang_ddtree.shards import ShardRanking
from sglang_ddtree.targets import choose_tokens
from sglang_ddtree.trees import (
    Acceptance,
    ChainBuilder,
    DraftTrees,
    TreeBuilder,
    accept,
    find_moves,
    rank_tokens,
    write_tree_mask,
)

CHAIN_VARIABLE = "SGLANG_DDTREE_CHAIN"
"""Set to 1, trees are DFlash's line, whose outputs and acceptance must then be DFlash's."""

KERNEL_VARIABLE = "SGLANG_DDTREE_KERNEL"
"""Set to 1, trees are grown by one kernel instead of many small launches, which must give the same."""

logger = logging.getLogger(__name__)


class DDTreeWorker(DFlashWorkerV2):  # type: ignore[misc]  # SGLang has no types
    """Drafts a block, grows a tree from it, verifies the tree, and moves what was accepted to the front.

    Prefill, the drafter, its cache and the relay of lengths between rounds are DFlash's. Unknown attributes
    of this class are looked up in the target's worker, so a misspelt one does not fail here.
    """

    def __init__(self, server_args: Any, gpu_id: int, ps: Any, nccl_port: int, target_worker: Any) -> None:
        self._width = int(server_args.speculative_num_draft_tokens)
        block_size = int(server_args.speculative_dflash_block_size)
        self._path_length = min(block_size, self._width)
        # DFlash's worker takes its block size, and the drafter's every width, from the tree's option.
        drafter_args = deepcopy(server_args)
        vars(drafter_args).pop("max_speculative_num_draft_tokens", None)  # computed once, then kept
        drafter_args.override("sglang_ddtree.drafter", speculative_num_draft_tokens=block_size)
        super().__init__(drafter_args, gpu_id, ps, nccl_port, target_worker)
        self.server_args = server_args
        builder = choose_builder()(block_size - 1, self._width - 1, self.device)
        self._group = get_tp_group()
        num_gpus = self._group.world_size
        head = find_head(target_worker.model_runner.model, builder.num_ranks, num_gpus)
        rank = rank_tokens if num_gpus == 1 else ShardRanking(head, self._group)
        self._proposer = TreeProposer(head.weight, builder, block_size, rank)
        self._path_offsets = torch.arange(self._path_length, device=self.device)
        self._own_mask = torch.zeros(0, dtype=torch.uint8, device=self.device)
        self._max_row_bytes = 0
        self._warned_eager = False

    def init_attention_backends(self) -> None:
        """Make the drafter's, then look at the target's and at its cache."""
        super().init_attention_backends()
        runner = self._target_worker.model_runner
        check_target(runner)
        pool = runner.token_to_kv_pool
        self._max_row_bytes = max(row_sizes([*pool.k_buffer, *pool.v_buffer]))
        if not self._graphs_are_on():
            self._report(captured="none, CUDA graphs are off")

    def init_cuda_graphs(self) -> None:
        """Capture the drafter's graphs, then see that the target's were captured for trees."""
        super().init_cuda_graphs()
        if not self._graphs_are_on():
            return
        target, drafter = self._target_worker.model_runner, self.draft_model_runner
        widths = [
            getattr(runner.decode_cuda_graph_runner, "captured_req_width", None)
            for runner in (target, drafter)
        ]
        _, has_mask = resolve_dflash_verify_mask_policy(target.attn_backend)
        if widths != [self._width, self.block_size] or not has_mask:
            raise RuntimeError(
                f"CUDA graphs: expected widths {self._width} (target) and {self.block_size} (drafter) and a "
                f"tree mask, got {widths[0]}, {widths[1]} and {'a' if has_mask else 'no'} mask; see the log "
                "above, or start with --disable-cuda-graph"
            )
        check_mask(target.attn_backend.verify_mask)
        self._report(captured=f"target {widths[0]}, drafter {widths[1]}, with a tree mask")

    def _graphs_are_on(self) -> bool:
        return bool(get_exec().graph.cuda_graph_config.decode.backend != Backend.DISABLED)

    def _report(self, captured: str) -> None:
        if self._group.rank_in_group != 0:
            return
        mask = self._target_worker.model_runner.attn_backend.verify_mask
        logger.info(
            "DDTree: budget %d, width %d, block %d, ranks %d, %s, GPUs %d; captured: %s; mask cells %s, "
            "batches to %s",
            self._width - 1,
            self._width,
            self.block_size,
            self._proposer.builder.num_ranks,
            type(self._proposer.builder).__name__,
            self._group.world_size,
            captured,
            "none yet" if mask is None else mask.buffer.numel(),
            "any" if mask is None else mask.max_bs,
        )

    def _maybe_build_draft_sampler(self) -> TreeProposer:
        """What ends the drafter's graph: trees instead of DFlash's most probable tokens."""
        self._proposer.reserve(max(get_exec().graph.cuda_graph_config.decode.bs))
        return self._proposer

    def _make_next_draft_input_prefill(self, *, bonus_tokens: Tensor, seq_lens: Tensor) -> DDTreeDraftInput:
        return DDTreeDraftInput.between_rounds(bonus_tokens, seq_lens)

    def _make_next_draft_input_decode(
        self, *, bonus_tokens: Tensor, new_seq_lens: Tensor
    ) -> DDTreeDraftInput:
        return DDTreeDraftInput.between_rounds(bonus_tokens, new_seq_lens)

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None
    ) -> GenerationBatchResult:
        """Prefill and idle as DFlash does, a decoding step by a tree.

        Args:
            batch: SGLang's.
            on_publish: takes the new lengths, [B] int64, as soon as they are known.
            grammar_barrier: unused, since grammars are refused.
        """
        is_prefill = batch.forward_mode.is_extend() or batch.is_extend_in_batch
        if is_prefill or batch.forward_mode.is_idle():
            return super().forward_batch_generation(batch, on_publish, grammar_barrier)
        self._validate_phase1_sampling_support(batch)
        return self._decode(batch, on_publish)

    def _decode(self, batch: Any, on_publish: Any) -> GenerationBatchResult:
        """One round. Nothing waits for the GPU, and no slot is looked up once the target's forward began."""
        # The lengths may come from another stream.
        batch.seq_lens.record_stream(torch.get_device_module(self.device).current_stream())
        prefix_lens, draft_input = batch.seq_lens, batch.spec_info
        slots = self._slots(batch)
        trees = self._draft(batch, draft_input)
        output, used_graph = self._verify(batch, draft_input, trees, slots)
        target_tokens = choose_tokens(
            output.next_token_logits, batch.sampling_info, draft_input, self._width, self._group
        )
        accepted = accept(trees, target_tokens, self._path_length)
        new_seq_lens = prefix_lens + accepted.lengths
        if on_publish is not None:
            on_publish(new_seq_lens)
        self._keep(accepted, slots, prefix_lens, output.hidden_states)
        output.hidden_states = None  # large, and nobody reads them
        bonus = accepted.tokens.gather(1, accepted.lengths.unsqueeze(1) - 1).squeeze(1)
        return GenerationBatchResult(
            logits_output=output,
            next_token_ids=accepted.tokens.flatten(),
            accept_lens=accepted.lengths.to(torch.int32),
            can_run_cuda_graph=used_graph,
            next_draft_input=self._make_next_draft_input_decode(
                bonus_tokens=bonus, new_seq_lens=new_seq_lens
            ),
            speculative_num_draft_tokens=self._path_length,  # tokens of a request in `next_token_ids`
            new_seq_lens=new_seq_lens,
        )

    def _slots(self, batch: Any) -> Tensor:
        """Reserved cache slots of the tree's nodes, [B, W] int64."""
        slots: Tensor = assign_extend_cache_locs_uniform_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            batch_size=len(batch.seq_lens),
            draft_token_num=self._width,
            device=self.device,
        )
        return slots.view(-1, self._width)

    def _draft(self, batch: Any, draft_input: Any) -> DraftTrees:
        """The drafter's forward over one block per request, and the trees that it leads to."""
        num_requests = len(batch.seq_lens)
        self._ensure_draft_block_buffers(num_requests)
        ids = self._draft_block_ids_buf[:num_requests]
        positions = self._draft_block_positions_buf[:num_requests]
        slots = self._draft_verify_out_cache_loc_buf[:num_requests]
        _prepare_dflash_draft_block_unchecked(
            bonus_tokens=draft_input.bonus_tokens.view(-1),
            prefix_lens=batch.seq_lens.view(-1),
            req_pool_indices=batch.req_pool_indices.view(-1),
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            block_ids_out=ids,
            positions_out=positions,
            cache_loc_out=slots,
            mask_token_id=int(self._mask_token_id),
        )
        embeddings = self._target_worker.model_runner.model.get_input_embeddings()(ids)
        host_lens, host_sum = host_lengths(batch, draft_input, self.block_size)
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=num_requests,
            input_ids=ids.flatten(),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=slots.reshape(-1),
            seq_lens_sum=host_sum,
            seq_lens_cpu=host_lens,
            positions=positions.reshape(-1),
            input_embeds=embeddings.view(-1, embeddings.shape[-1]),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        with torch.inference_mode():
            output = self.draft_model_runner.forward(forward_batch)
            if self._draft_sampler is not None and output.can_run_graph:
                return self._proposer.captured(num_requests)
            return self._proposer.propose(output.logits_output.hidden_states, ids[:, 0])

    def _verify(self, batch: Any, draft_input: Any, trees: DraftTrees, slots: Tensor) -> tuple[Any, bool]:
        """The target's forward over all nodes: its output, and whether a CUDA graph ran."""
        host_lens, host_sum = host_lengths(batch, draft_input, self._width)
        verify_input = DFlashVerifyInput(
            draft_token=trees.tokens.flatten(),
            positions=(batch.seq_lens.unsqueeze(1) + trees.depths).flatten(),
            draft_token_num=self._width,
            custom_mask=self._mask(trees, batch.seq_lens, host_sum),
            capture_hidden_mode=CaptureHiddenMode.FULL,
        )
        batch.out_cache_loc = slots.flatten()
        kept = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = host_lens, host_sum
        forward_batch, _ = verify_input.prepare_for_verify(batch, self._target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = kept
        result = self._target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )
        if not result.can_run_cuda_graph and not self._warned_eager and self._graphs_are_on():
            self._warned_eager = True
            logger.warning("DDTree: a batch of %d was verified without a CUDA graph.", len(slots))
        return result.logits_output, result.can_run_cuda_graph

    def _mask(self, trees: DraftTrees, prefix_lens: Tensor, host_sum: int) -> Tensor:
        """The tree mask, in the tensor that the captured graphs read where the batch fits it."""
        shared = self._target_worker.model_runner.attn_backend.verify_mask
        if shared is not None and shared.fits(len(prefix_lens)):
            mask: Tensor = shared.buffer
        else:
            num_cells = self._width * (host_sum + self._width * len(prefix_lens))
            if len(self._own_mask) < num_cells:
                self._own_mask = torch.zeros(2 * num_cells, dtype=torch.uint8, device=self.device)
            mask = self._own_mask
        write_tree_mask(mask, trees.ancestors, prefix_lens)
        return mask

    def _keep(self, accepted: Acceptance, slots: Tensor, prefix_lens: Tensor, hidden_states: Tensor) -> None:
        """Move accepted nodes' keys and values to the front; give their features to the drafter's cache."""
        pool = self._target_worker.model_runner.token_to_kv_pool
        moves = find_moves(slots, accepted)
        move_rows_at_once(pool.data_ptrs, pool.data_strides, self._max_row_bytes, moves)
        features = hidden_states.view(slots.numel(), -1)
        first = torch.arange(len(slots), device=slots.device).unsqueeze(1) * self._width
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=features.index_select(0, (first + accepted.path).flatten()),
            cache_loc=moves[1].flatten(),
            cache_loc_2d=moves[1],
            positions=(prefix_lens.unsqueeze(1) + self._path_offsets).flatten(),
            commit_lens=accepted.lengths.to(torch.int32),
        )


def choose_builder() -> type[ChainBuilder | TreeBuilder | KernelTreeBuilder]:
    """What makes the trees, by the environment."""
    if os.environ.get(CHAIN_VARIABLE) == "1":
        return ChainBuilder
    return KernelTreeBuilder if os.environ.get(KERNEL_VARIABLE) == "1" else TreeBuilder


def host_lengths(batch: Any, draft_input: Any, num_new: int) -> tuple[Tensor, int]:
    """Upper bounds of the requests' lengths that the host knows without asking the GPU, and their sum.

    Args:
        batch: SGLang's; its own lengths lag by a round, or are missing where no backend needs them.
        draft_input: holds what is reserved.
        num_new: tokens of a request in this forward.
    """
    if batch.seq_lens_cpu is not None:
        lengths = batch.seq_lens_cpu.to(torch.int32) + num_new
        return lengths, int(lengths.sum())
    return draft_input.reserved_seq_lens_cpu, int(draft_input.reserved_seq_lens_sum)
