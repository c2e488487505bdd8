"""Responses of the target in large batches: waves of left-padded prompts over one dense cache.

At these model sizes a decode step of a thousand sequences is bound by reading their keys and values, so
a wave holds sequences of like length, drops finished ones, and reads only the used part of the cache.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from draftbench.training.target import Target

Ids = NDArray[np.int64]
logger = logging.getLogger(__name__)

ALIGNMENT = 64  # reading whole tiles of keys is what the attention kernels are fast at


@dataclass(frozen=True)
class GenerationSettings:
    """How a set of prompts is answered.

    Attributes:
        max_new_tokens: upper limit of a response.
        temperature: 0 is greedy.
        stop_id: token that ends a response.
        cache_tokens: key and value slots of a wave, B * T.
        drop_below: a wave ends when fewer than this part of it is still running; the rest is kept as it is.
        prefill_tokens: padded prompt tokens of one prefill call.
    """

    max_new_tokens: int
    temperature: float
    stop_id: int
    cache_tokens: int
    drop_below: float = 0.0
    prefill_tokens: int = 131072


class Wave:
    """Sequences that are decoded in step; rows are dropped as they finish."""

    def __init__(
        self,
        target: Target,
        prompts: Sequence[Ids],
        can_stop: Sequence[bool],
        settings: GenerationSettings,
        generator: torch.Generator,
    ) -> None:
        self.target, self.settings, self.generator = target, settings, generator
        self.device = target.embedding.device
        self.width = max(len(prompt) for prompt in prompts)
        capacity = -(-(self.width + settings.max_new_tokens) // ALIGNMENT) * ALIGNMENT
        shape = target.shape
        size = (2, len(prompts), shape.num_key_value_heads, capacity, shape.head_dim)
        self.cache = [  # one tensor a layer, so that dropping rows needs room for one copy of a layer only
            torch.zeros(size, dtype=target.embedding.dtype, device=self.device)
            for _ in range(shape.num_hidden_layers)
        ]
        padded = np.zeros((len(prompts), self.width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            padded[row, self.width - len(prompt) :] = prompt
        self.prompt_ids = torch.from_numpy(padded).to(self.device)
        self.padding = torch.tensor([self.width - len(prompt) for prompt in prompts], device=self.device)
        self.can_stop = torch.tensor(can_stop, device=self.device)
        self.rows = torch.arange(len(prompts), device=self.device)
        self.tokens = torch.full((len(prompts), settings.max_new_tokens), -1, device=self.device)
        self.is_running = torch.ones(len(prompts), dtype=torch.bool, device=self.device)

    def run(self) -> list[Ids]:
        """Decode to the end; one array of response ids a prompt, the stop id included."""
        num_prompts = len(self.rows)
        last = self._prefill()
        for step in range(self.settings.max_new_tokens):
            chosen = self._sample(last)
            self.tokens[self.rows, step] = torch.where(self.is_running, chosen, -1)
            self.is_running &= (chosen != self.settings.stop_id) | ~self.can_stop
            if step % 16 == 15 and not self._compact(num_prompts):
                break
            if step + 1 < self.settings.max_new_tokens:
                last = self._decode(step)
        table = self.tokens.cpu().numpy()
        return [row[row >= 0] for row in table]

    def _prefill(self) -> Tensor:
        """Fill the cache with the prompts; last hidden states [B, E]."""
        rows_per_call = max(1, self.settings.prefill_tokens // self.width)
        starts = range(0, len(self.rows), rows_per_call)
        return torch.cat([self._prefill_rows(slice(start, start + rows_per_call)) for start in starts])

    def _prefill_rows(self, part: slice) -> Tensor:
        padding = self.padding[part]
        column = torch.arange(self.width, device=self.device)
        is_real = column >= padding[:, None]
        causal = column[:, None] >= column
        # a padded query sees itself, so that its softmax is defined
        itself = torch.eye(self.width, dtype=torch.bool, device=self.device)
        mask = ((causal & is_real[:, None, :]) | itself)[:, None]

        def attend_prompt(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            window = self.cache[layer][:, part, :, : self.width]
            window[0], window[1] = key, value
            # repeated heads: the fast kernel that takes a mask does not group queries
            groups = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
            return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

        embedded = functional.embedding(self.prompt_ids[part], self.target.embedding)
        positions = (column - padding[:, None]).clamp(min=0)
        return self.target.forward_with(embedded, positions, attend_prompt)[:, -1]

    def _decode(self, step: int) -> Tensor:
        """Append the tokens of `step` at column width + step; last hidden states [B, E]."""
        ids = self.tokens[self.rows, step].clamp(min=0)  # a finished row goes on with any token
        column = self.width + step
        used = -(-(column + 1) // ALIGNMENT) * ALIGNMENT
        index = torch.arange(used, device=self.device)
        is_used = (index >= self.padding[:, None]) & (index <= column)
        bias = torch.zeros(is_used.shape, dtype=self.cache[0].dtype, device=self.device)
        bias = bias.masked_fill(~is_used, float("-inf"))[:, None, None]

        def attend_cached(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.cache[layer][..., :used, :]
            keys[:, :, column], values[:, :, column] = key[:, :, 0], value[:, :, 0]
            # the query heads of one key head become its query rows: each key is read once
            grouped = query.view(len(key), key.shape[1], -1, key.shape[3])
            mask = bias.expand(-1, *grouped.shape[1:3], -1)
            mixed = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
            return mixed.flatten(1, 2).unsqueeze(2)

        embedded = functional.embedding(ids[:, None], self.target.embedding)
        positions = (column - self.padding)[:, None]
        return self.target.forward_with(embedded, positions, attend_cached)[:, -1]

    def _sample(self, last: Tensor) -> Tensor:
        """Chosen ids [B]; at a temperature by the Gumbel trick: argmax(logits / T + noise)."""
        logits = self.target.logits(last)
        if self.settings.temperature > 0:
            noise = torch.empty_like(logits).exponential_(generator=self.generator)
            logits = logits - self.settings.temperature * noise.log()
        return logits.argmax(dim=-1)

    def _compact(self, num_prompts: int) -> bool:
        """Drop finished rows once they are a fifth; False when the wave is over."""
        num_running = int(self.is_running.sum())
        if num_running <= num_prompts * self.settings.drop_below:
            return False
        if num_running < 0.8 * len(self.rows):
            keep = self.is_running.nonzero()[:, 0]
            for layer, cached in enumerate(self.cache):
                self.cache[layer] = cached[:, keep]
            self.padding, self.rows = self.padding[keep], self.rows[keep]
            self.is_running, self.can_stop = self.is_running[keep], self.can_stop[keep]
        return True


@torch.inference_mode()
def generate(
    target: Target,
    prompts: Sequence[Ids],
    settings: GenerationSettings,
    *,
    seed: int,
    can_stop: Sequence[bool] | None = None,
    deadline_s: float = float("inf"),
) -> list[Ids | None]:
    """Answer every prompt, longest prompts last.

    Args:
        target: on the device where generation runs.
        prompts: token ids, generation prompt of the chat template included.
        settings: lengths, temperature, sizes.
        seed: of the sampling noise.
        can_stop: for each prompt, whether its response ends at the stop token; None: all do.
        deadline_s: `time.monotonic()` after which no further wave starts.

    Returns:
        response ids a prompt, in the order of `prompts`; None for prompts that no wave reached.
    """
    generator = torch.Generator(target.embedding.device).manual_seed(seed)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    responses: list[Ids | None] = [None] * len(prompts)
    while order and time.monotonic() < deadline_s:
        wave_ids = _next_wave(order, prompts, settings)
        began_s = time.monotonic()
        stops = [can_stop is None or can_stop[index] for index in wave_ids]
        answers = Wave(target, [prompts[index] for index in wave_ids], stops, settings, generator).run()
        for index, answer in zip(wave_ids, answers, strict=True):
            responses[index] = answer
        num_tokens = sum(map(len, answers))
        elapsed_s = time.monotonic() - began_s
        logger.info(
            "wave of %d prompts: %d tokens in %.1f s, %.0f tok/s",
            len(wave_ids),
            num_tokens,
            elapsed_s,
            num_tokens / elapsed_s,
        )
    return responses


def _next_wave(order: list[int], prompts: Sequence[Ids], settings: GenerationSettings) -> list[int]:
    """Take the longest prefix of `order` whose padded cache fits; at least one prompt."""
    size = 0
    while size < len(order):
        width = len(prompts[order[size]]) + settings.max_new_tokens
        if size and (size + 1) * width > settings.cache_tokens:
            break
        size += 1
    wave, order[:] = order[:size], order[size:]
    return wave
