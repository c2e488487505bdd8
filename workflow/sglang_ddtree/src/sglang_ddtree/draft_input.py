"""What goes from one round to the next, and the slots that are reserved for a round."""

from typing import Any, Self

import torch
from sglang.srt.mem_cache.allocation import alloc_for_spec_decode
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from torch import Tensor


class DDTreeDraftInput(DFlashDraftInputV2):  # type: ignore[misc]  # SGLang has no types
    """DFlash's, with room for the drafter's block where the tree is smaller than that."""

    @classmethod
    def between_rounds(cls, last_tokens: Tensor, seq_lens: Tensor) -> Self:
        """What a round leaves to the next.

        Args:
            last_tokens: the roots of the next trees, [B].
            seq_lens: lengths before them, [B].
        """
        empty = last_tokens.new_empty(len(seq_lens), 0)
        return cls(
            topk_p=empty.to(torch.float32),
            topk_index=empty,
            bonus_tokens=last_tokens.to(torch.int64),
            new_seq_lens=seq_lens.to(torch.int64),
            hidden_states=empty.to(torch.float16),
        )

    def prepare_for_decode(self, batch: Any) -> None:
        """Reserve slots two rounds ahead, since the host knows a request's length only one round later.

        DFlash's way reserves two tree widths. A round writes a block of slots whatever the tree, so it needs
        two blocks where those are more.
        """
        spec = get_spec()
        if spec.speculative_num_draft_tokens < spec.speculative_dflash_block_size:
            _reserve(batch, 2 * spec.speculative_dflash_block_size)
        super().prepare_for_decode(batch)


def _reserve(batch: Any, num_slots: int) -> None:
    """Give every request slots for `num_slots` tokens beyond its committed ones."""
    held = torch.tensor([req.kv.kv_allocated_len for req in batch.reqs], dtype=torch.int32)
    needed = torch.tensor([req.kv_committed_len + num_slots for req in batch.reqs], dtype=torch.int32)
    needed = torch.maximum(held, needed)
    num_missing = int((needed - held).sum())
    if num_missing == 0:
        return
    on_gpu = torch.stack([held, needed]).pin_memory().to(batch.device, non_blocking=True)
    alloc_for_spec_decode(
        batch.tree_cache,
        batch.req_to_token_pool,
        reqs=batch.reqs,
        req_pool_indices=batch.req_pool_indices,
        cur_kv_lens=on_gpu[0],
        cur_kv_lens_cpu=held,
        nxt_kv_lens=on_gpu[1],
        nxt_kv_lens_cpu=needed,
        num_needed_tokens=num_missing,
        batch=batch,
    )
