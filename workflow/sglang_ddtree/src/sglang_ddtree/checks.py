"""What this plugin refuses at the start of a server, each in one sentence."""

from collections.abc import Iterable
from importlib import metadata
from typing import Any

import torch

from sglang_ddtree.shards import Head
from sglang_ddtree.trees import MAX_BUDGET

ALGORITHM = "DDTREE_OOT"
RELEASE = "0.5.17"

# By field of SGLang's server arguments: what it may be.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "pp_size": (1,),
    "dp_size": (1,),
    "enable_dp_attention": (None, False),
    "attn_cp_size": (1,),
    "dcp_size": (1,),
    "page_size": (None, 1),
    "grammar_backend": ("none",),
    "disaggregation_mode": ("null",),
    "speculative_draft_window_size": (None,),
    "speculative_adaptive": (None, False),
    "enable_lora": (None, False),
    "enable_deterministic_inference": (None, False),
    "enable_two_batch_overlap": (None, False),
    "enable_pdmux": (None, False),
    "enable_hisparse": (None, False),
    "enable_unified_memory": (None, False),
}
_BACKEND = "triton"


def is_supported_release() -> bool:
    """Whether SGLang is the release whose inner functions this plugin calls and replaces."""
    return metadata.version("sglang") == RELEASE


def check_release() -> None:
    """Refuse other releases.

    Raises:
        ValueError: SGLang is one.
    """
    if not is_supported_release():
        found = metadata.version("sglang")
        raise ValueError(
            f"sglang: expected {RELEASE} for {ALGORITHM}, got {found}; install sglang=={RELEASE}"
        )


def check_server_args(args: Any, attention_backends: Iterable[str | None]) -> None:
    """Options that trees of this plugin do not go together with.

    Args:
        args: SGLang's server arguments, as far as they are resolved.
        attention_backends: of prefill and decode.

    Raises:
        ValueError: one is set; the sentence names it.
    """
    for field, allowed in _ALLOWED.items():
        found = getattr(args, field)
        if found not in allowed:
            raise ValueError(
                f"{_option(field)}: expected {_spell(allowed[-1])} with {ALGORITHM}, got {_spell(found)}; "
                "change it, or draft with DFLASH"
            )
    for found in attention_backends:
        if found != _BACKEND:
            raise ValueError(
                f"--attention-backend: expected {_BACKEND}, whose kernel takes a tree mask, with "
                f"{ALGORITHM}, got {found}; set it"
            )


def check_widths(width: int | None, block_size: int) -> None:
    """A tree has a root and at least one node.

    Args:
        width: nodes with the root, None where it was not given.
        block_size: of the drafter.

    Raises:
        ValueError: it is missing, or no tree can have it.
    """
    if width is None or not 2 <= width <= MAX_BUDGET + 1:
        raise ValueError(
            f"--speculative-num-draft-tokens: expected the nodes of a tree with its root, 2 to "
            f"{MAX_BUDGET + 1}, got {width}; for a budget of 32 nodes give 33"
        )
    if block_size < 2:
        raise ValueError(
            f"--speculative-dflash-block-size: expected at least 2, got {block_size}; "
            "take the drafter's block size"
        )


def check_target(runner: Any) -> None:
    """The target's attention and cache are the kind whose tree mask and slots this plugin writes.

    Args:
        runner: SGLang's model runner of the target, with its memory pools and its attention backend.

    Raises:
        ValueError: they are not.
    """
    backend, pool = type(runner.attn_backend).__name__, type(runner.token_to_kv_pool).__name__
    layout = getattr(runner.token_to_kv_pool, "kv_cache_layout", None)
    if backend != "TritonAttnBackend" or runner.sliding_window_size is not None:
        raise ValueError(
            f"target: expected full attention by TritonAttnBackend with {ALGORITHM}, got {backend} and a "
            f"sliding window of {runner.sliding_window_size}; hybrid and sliding-window targets draft with "
            "DFLASH"
        )
    if pool != "MHATokenToKVPool" or layout != "nhd" or runner.token_to_kv_pool.is_quantized_kv_cache:
        raise ValueError(
            f"target: expected an unquantized cache of keys and values by slot (MHATokenToKVPool, nhd) with "
            f"{ALGORITHM}, got {pool}, {layout}; MLA and quantized caches draft with DFLASH"
        )


def check_mask(mask: Any) -> None:
    """The mask that the target's graphs read is of the kind that this plugin writes.

    Args:
        mask: of SGLang's attention backend, None where it has none.

    Raises:
        ValueError: it is not.
    """
    kind = None if mask is None else (mask.mode.name, mask.buffer.dtype)
    if kind != ("FULL_MASK", torch.uint8):
        raise ValueError(
            f"target: expected a full verify mask of uint8 with {ALGORITHM}, got {kind}; "
            f"install sglang=={RELEASE}"
        )


def find_head(model: Any, num_ranks: int, num_gpus: int) -> Head:
    """The target's output embedding, which turns the drafter's hidden states into tokens.

    Args:
        model: the target.
        num_ranks: tokens of a position that the trees ask for.
        num_gpus: that the target's layers are split over.

    Returns:
        this GPU's part of it; all of it on a single one.

    Raises:
        ValueError: it is quantized, extended, not split as the layers are, or smaller than the trees need.
    """
    head: Any = getattr(model, "lm_head", None)
    weight = getattr(head, "weight", None)
    if weight is None or not weight.is_floating_point():
        raise ValueError(
            f"target: expected an unquantized lm_head with {ALGORITHM}, got {type(head).__name__} of "
            f"{getattr(weight, 'dtype', None)}; take a checkpoint whose lm_head is not quantized"
        )
    found, vocabulary = Head(weight, 0), len(weight)
    shard = getattr(head, "shard_indices", None)
    if shard is not None:
        if shard.num_added_elements:
            raise ValueError(
                f"target: expected no added vocabulary with {ALGORITHM}, got {shard.num_added_elements} "
                "tokens; draft with DFLASH"
            )
        found = Head(weight[: shard.num_org_elements], int(shard.org_vocab_start_index))
        vocabulary = int(head.org_vocab_size)
    num_parts = 1 if shard is None else int(head.tp_size)
    if num_parts != num_gpus:
        raise ValueError(
            f"target: expected an lm_head in {num_gpus} parts, one a GPU, with {ALGORITHM}, got "
            f"{type(head).__name__} in {num_parts}; set --tp-size 1, or draft with DFLASH"
        )
    if vocabulary < num_ranks:
        raise ValueError(
            f"--speculative-num-draft-tokens: expected at most the vocabulary's {vocabulary} tokens and the "
            f"root, got {num_ranks + 1}; take a smaller tree"
        )
    return found


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)
