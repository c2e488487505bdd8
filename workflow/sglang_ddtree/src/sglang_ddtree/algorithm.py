"""How SGLang comes to know the algorithm: its name, its options, and what SGLang decides for DFlash alone."""

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from sglang_ddtree.checks import (
    ALGORITHM,
    check_release,
    check_server_args,
    check_widths,
    is_supported_release,
)


class DDTreeAlgorithm(CustomSpecAlgo):  # type: ignore[misc]  # SGLang has no types
    """DDTree, to SGLang one of the DFlash family.

    Two widths instead of one: `speculative_num_draft_tokens` is the tree's, with its root, and sizes the
    target's forward; `speculative_dflash_block_size` is the drafter's.
    """

    def is_dflash(self) -> bool:
        """As DFlash: draft layers in the same memory, target features to the drafter."""
        return True

    def is_dflash_family(self) -> bool:
        """As DFlash."""
        return True

    def supports_target_verify_for_draft(self) -> bool:
        """The drafter's forward is a verification of one block."""
        return True

    def need_topk(self) -> bool:
        """Nothing but the last token goes from round to round."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """Nothing but the last token goes from round to round."""
        return False

    def create_future_map(
        self,
        device: Any,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        """The relay of lengths and last tokens between rounds, as the built-in algorithms have it."""
        from sglang.srt.managers.overlap_utils import FutureMap  # noqa: PLC0415  (imports the scheduler)

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        """Tokens of one request in a forward: of the tree, or of the drafter's block."""
        if not is_draft_worker:
            return num_draft_tokens
        from sglang.srt.runtime_context import get_spec  # noqa: PLC0415

        return int(get_spec().speculative_dflash_block_size)

    def handle_server_args(self, server_args: Any) -> None:
        """Check and complete the options.

        Raises:
            ValueError: one is missing or does not go together with trees.
        """
        from sglang.srt.arg_groups.overrides import attention_backends_of, resolved_view  # noqa: PLC0415
        from sglang.srt.arg_groups.speculative_hook import _handle_dflash  # noqa: PLC0415

        check_release()
        width = server_args.speculative_num_draft_tokens
        # DFlash's handler takes one width for both and finds the drafter's where none is given.
        server_args.speculative_num_draft_tokens = None
        _handle_dflash(server_args)
        block_size = int(server_args.speculative_num_draft_tokens)
        check_widths(width, block_size)
        server_args.speculative_num_draft_tokens = width
        server_args.speculative_dflash_block_size = block_size
        view = resolved_view(server_args)
        backends = (*attention_backends_of(view), server_args.speculative_draft_attention_backend)
        check_server_args(view, backends)


def register_algorithm() -> None:
    """Register the algorithm and its hooks, once."""
    try:
        SpeculativeAlgorithm.from_string(ALGORITHM)
    except ValueError:
        pass
    else:
        return
    SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=DDTreeAlgorithm)(_worker_class)
    if is_supported_release():  # another one is refused when it drafts trees, and left alone when it does not
        for target, hook in _HOOKS.items():
            HookRegistry.register(target, hook, HookType.AROUND)


def _worker_class(_server_args: Any) -> type:
    from sglang_ddtree.worker import DDTreeWorker  # noqa: PLC0415  (imports the whole model stack)

    return DDTreeWorker


def _keep_tree_mask(original: Callable[..., Any], attn_backend: Any) -> Any:
    """DFlash's verification is causal, so SGLang captures its graph without a mask: a tree's were lost."""
    from sglang.srt.runtime_context import get_server_args  # noqa: PLC0415

    name, builds_mask = original(attn_backend)
    return name, builds_mask or _drafts_trees(get_server_args())


def _cover_block(original: Callable[..., Any], server_args: Any = None) -> Any:
    """A round writes the drafter's block too, which is wider than a small tree."""
    from sglang.srt.runtime_context import get_server_args  # noqa: PLC0415

    server_args = get_server_args() if server_args is None else server_args
    length = original(server_args)
    return max(length, server_args.speculative_dflash_block_size) if _drafts_trees(server_args) else length


def _cover_reserve(original: Callable[..., Any], server_args: Any) -> Any:
    """Slots are reserved two rounds ahead: near the context's end they need a longer row than DFlash has."""
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode  # noqa: PLC0415

    extra = original(server_args)
    return max(extra, get_alloc_reserve_per_decode(server_args)) if _drafts_trees(server_args) else extra


def _drafts_trees(server_args: Any) -> bool:
    return bool(server_args.speculative_algorithm == ALGORITHM)


_HOOKS: dict[str, Callable[..., Any]] = {
    "sglang.srt.speculative.dflash_utils.resolve_dflash_verify_mask_policy": _keep_tree_mask,
    "sglang.srt.mem_cache.allocation_sizing.get_alloc_len_per_decode": _cover_block,
    "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len": _cover_reserve,
}
