"""Teacher-forced passes of a staged target: its logits along an output that is already known."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from draftbench.engine.cache import KVCache
from draftbench.engine.config import read_target_config
from draftbench.engine.factory import resolve_dtype
from draftbench.engine.layers import causal_bias
from draftbench.engine.llama import Llama, Rows
from draftbench.engine.serving.tokenizer import Tokenizer
from draftbench.engine.weights import WeightReader
from draftbench.stats.exactness import LogitGap, logit_resolution


class Teacher:
    """A target in the number format it was served in, on the CPU."""

    def __init__(self, model_path: Path, dtype: str, max_tokens: int) -> None:
        """Load the target, and hold torch to one thread from then on.

        One thread sums in one order whatever the machine, and threads that wait for each other in a spin are
        many times slower on a host that is busy with something else.

        Args:
            model_path: its folder.
            dtype: `float32` or `bfloat16`, as served.
            max_tokens: longest prompt and output together.

        Raises:
            ConfigError: the folder holds no target that fits, or the CPU does not compute in that dtype.
        """
        torch.set_num_threads(1)
        config = read_target_config(model_path)
        device = torch.device("cpu")
        torch_dtype = resolve_dtype(dtype, device)
        self._dtype = dtype
        self._tokenizer = Tokenizer(model_path)
        self._model = Llama(config, WeightReader(model_path, torch_dtype, device), max_tokens, ())
        self._cache = KVCache(config.block, 1, max_tokens, torch_dtype, device)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of an input text, as the server makes them of it."""
        return self._tokenizer.encode(text)

    @torch.inference_mode()
    def logits(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Tensor:
        """The target's logits before each output token, [len(output_ids), V] float32."""
        token_ids = torch.tensor([*prompt_ids, *output_ids[:-1]])
        places = torch.arange(len(token_ids))
        causal = causal_bias(len(token_ids), 0, self._cache.rows.dtype, places.device)
        rows = Rows(token_ids, places, [self._cache.window(0, len(token_ids), causal)])
        logits, _ = self._model.forward(rows, places[len(prompt_ids) - 1 :])
        return logits.float()

    def gap(self, logits: Tensor, baseline_token: int, method_token: int) -> LogitGap:
        """The gap of two candidates in one row of `logits`, [V]."""
        gap = abs(float(logits[baseline_token] - logits[method_token]))
        return LogitGap(gap, logit_resolution(self._dtype, float(logits.abs().max())))
