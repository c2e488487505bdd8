"""What the target says after every node: its most probable token, or one drawn from its distribution."""

from typing import Any

from sglang.srt.speculative.dflash_utils import (
    apply_dflash_verify_logits_adjustments,
    build_dflash_verify_target_probs,
    is_dflash_sampling_verify_available,
)
from sglang.srt.speculative.spec_utils import fast_sample
from torch import Tensor

from sglang_ddtree.shards import Group


def choose_tokens(logits: Tensor, sampling_info: Any, draft_input: Any, width: int, group: Group) -> Tensor:
    """The target's token after every node.

    Each node's token is drawn whether or not its path is kept, so the emitted tokens are distributed as the
    target's own, whatever the tree.

    Args:
        logits: of all nodes, [B * width, V] float32, adjusted in place by penalties and biases.
        sampling_info: SGLang's, of the batch's requests.
        draft_input: of the batch, which knows its `top_k`.
        width: nodes of a tree.
        group: the target's GPUs. All have the same logits, gathered, so they agree on the most probable;
            drawn are the first one's.

    Returns:
        [B, width] int64, the same on every GPU.
    """
    if sampling_info is not None:
        apply_dflash_verify_logits_adjustments(
            next_token_logits=logits, sampling_info=sampling_info, draft_token_num=width
        )
    if sampling_info is None or sampling_info.is_all_greedy or not is_dflash_sampling_verify_available():
        return logits.argmax(dim=-1).view(-1, width)
    probabilities = build_dflash_verify_target_probs(
        next_token_logits=logits,
        sampling_info=sampling_info,
        draft_token_num=width,
        bs=len(logits) // width,
        max_top_k=draft_input.max_top_k,
        uniform_top_k_value=draft_input.uniform_top_k_value,
    )
    _, drawn = fast_sample(probabilities.flatten(0, 1))
    return group.broadcast(drawn.view(-1, width), src=0)
