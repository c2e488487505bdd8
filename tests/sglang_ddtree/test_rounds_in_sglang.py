"""Whole rounds of the worker on a CPU, its forwards those of a target and a drafter that can be foretold.

The target's cache is real memory: it holds each token and its position, and the target reads from it what it
sees. So a wrong slot, position, mask, move or length gives other tokens than decoding one at a time.
"""

import os
import zlib
from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt.plugins", reason="SGLang has an environment of its own")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.draft_worker_common import make_draft_block_spec_info
from sglang_ddtree.draft_input import DDTreeDraftInput
from sglang_ddtree.growing import KernelTreeBuilder
from sglang_ddtree.proposal import TreeProposer
from sglang_ddtree.trees import ChainBuilder, TreeBuilder

from sglang_ddtree import worker as worker_module

VOCABULARY, MASK, BLOCK, ROW = 40, 39, 16, 400
PROMPTS = ([3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9])


def next_token(tokens):
    return zlib.crc32(bytes(tokens)) % (VOCABULARY - 1)


def continued(tokens, number):
    """Decoding one token at a time."""
    tokens = list(tokens)
    for _ in range(number):
        tokens.append(next_token(tokens))
    return tokens


class Target:
    """Says for every node what comes after the tokens that it sees."""

    def __init__(self, num_requests):
        slots = 1 + torch.randperm(num_requests * ROW, generator=torch.Generator().manual_seed(5))
        rows = torch.cat([torch.zeros(1, ROW), slots.view(num_requests, ROW)]).to(torch.int32)
        self.rows = rows
        self.tokens, self.positions = (torch.zeros(len(slots) + 1, 1, dtype=torch.int32) for _ in range(2))
        buffers = [self.tokens, self.positions]
        pool = SimpleNamespace(
            k_buffer=[self.tokens],
            v_buffer=[self.positions],
            data_ptrs=torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
            data_strides=torch.tensor([4, 4]),
        )
        embed = SimpleNamespace(get_input_embeddings=lambda: lambda ids: torch.zeros(*ids.shape, 2))
        self.model_runner = SimpleNamespace(
            model=embed,
            token_to_kv_pool=pool,
            req_to_token_pool=SimpleNamespace(req_to_token=rows),
            attn_backend=SimpleNamespace(verify_mask=None),
        )

    def prefill(self, row, tokens):
        slots = self.rows[row, : len(tokens)].long()
        self.tokens[slots, 0] = torch.tensor(tokens, dtype=torch.int32)
        self.positions[slots, 0] = torch.arange(len(tokens), dtype=torch.int32)

    def forward_batch_generation(self, batch, forward_batch, is_verify, skip_attn_backend_init):
        assert (batch, is_verify, skip_attn_backend_init) == (None, True, True)
        given, info = forward_batch.batch, forward_batch.info
        width = info.draft_token_num
        slots = given.out_cache_loc.view(-1, width)
        tokens, positions = info.draft_token.view(-1, width), info.positions.view(-1, width)
        said, start = [], 0
        for request, length in enumerate(given.seq_lens.tolist()):
            self.tokens[slots[request], 0] = tokens[request].to(torch.int32)
            self.positions[slots[request], 0] = positions[request].to(torch.int32)
            block = info.custom_mask[start : start + width * (length + width)].view(width, length + width)
            start += block.numel()
            prefix = self.rows[given.req_pool_indices[request], :length].long()
            assert self.positions[prefix, 0].tolist() == list(range(length))
            for node in range(width):
                seen = torch.cat([prefix, slots[request][block[node, length:].bool()]])
                assert self.positions[seen, 0].tolist() == list(range(len(seen)))
                said.append(next_token(self.tokens[seen, 0].tolist()))
        said = torch.tensor(said)
        output = SimpleNamespace(
            next_token_logits=torch.nn.functional.one_hot(said, VOCABULARY).float(),
            hidden_states=torch.stack([info.draft_token, info.positions], dim=1).float(),
        )
        return SimpleNamespace(logits_output=output, can_run_cuda_graph=False)


class Drafter:
    """Finds the coming tokens likely, though less and less, and not always the likeliest."""

    def __init__(self, texts, block):
        self.texts, self.block, self.generator = texts, block, torch.Generator().manual_seed(3)

    def forward(self, forward_batch):
        ids, positions = forward_batch.input_ids.view(-1, BLOCK), forward_batch.positions.view(-1, BLOCK)
        assert (ids[:, 1:] == MASK).all()
        logits = torch.randn(*ids.shape, VOCABULARY, generator=self.generator)
        for request, text in enumerate(self.texts):
            first = int(positions[request, 0])
            assert text[first] == ids[request, 0]
            assert positions[request].tolist() == list(range(first, first + BLOCK))
            for slot in range(1, BLOCK):
                logits[request, slot, text[first + slot]] += 2.5
        output = SimpleNamespace(hidden_states=logits.flatten(0, 1))
        return SimpleNamespace(logits_output=output, can_run_graph=False)


def make_worker(target, drafter, width, builder_class, monkeypatch):
    worker = worker_module.DDTreeWorker.__new__(worker_module.DDTreeWorker)
    values = {
        "device": "cpu",
        "block_size": BLOCK,
        "model_runner": target.model_runner,
        "draft_model_runner": drafter,
        "_target_worker": target,
        "_width": width,
        "_path_length": min(BLOCK, width),
        "_proposer": TreeProposer(torch.eye(VOCABULARY), builder_class(BLOCK - 1, width - 1, "cpu"), BLOCK),
        "_path_offsets": torch.arange(min(BLOCK, width)),
        "_own_mask": torch.zeros(0, dtype=torch.uint8),
        "_max_row_bytes": 4,
        "_warned_eager": False,
        "_draft_sampler": None,
        "_draft_block_ids_buf": None,
        "_mask_token_id": MASK,
        "_draft_block_spec_info": make_draft_block_spec_info(draft_token_num=BLOCK, device="cpu"),
    }
    vars(worker).update(values)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _tensor, _stream: None)
    monkeypatch.setattr(worker_module, "assign_extend_cache_locs_uniform_func", extend_slots)
    monkeypatch.setattr(
        worker_module.DFlashVerifyInput,
        "prepare_for_verify",
        lambda info, batch, _worker: (
            SimpleNamespace(batch=SimpleNamespace(**vars(batch)), info=info),
            False,
        ),
    )
    monkeypatch.setattr(worker_module.DDTreeWorker, "_graphs_are_on", lambda _worker: False)
    return worker


def extend_slots(req_pool_indices, req_to_token, start_offset, draft_token_num, **_):
    places = start_offset.unsqueeze(1) + torch.arange(draft_token_num)
    return req_to_token[req_pool_indices.unsqueeze(1), places].long().flatten()


@pytest.mark.parametrize(
    ("width", "builder_class"),
    [
        *((width, TreeBuilder) for width in (9, 17)),
        *((width, KernelTreeBuilder) for width in (2, 9, 13, 17, 33)),
        *((width, ChainBuilder) for width in (9, 16)),
    ],
)
def test_rounds_emit_what_decoding_one_token_at_a_time_emits(width, builder_class, monkeypatch):
    texts = [continued(prompt, 150) for prompt in PROMPTS]
    target = Target(len(PROMPTS))
    worker = make_worker(target, Drafter(texts, BLOCK), width, builder_class, monkeypatch)
    appended = []
    monkeypatch.setattr(worker_module.DDTreeWorker, "_append_target_hidden_to_draft_kv_by_loc",
                        lambda _worker, **given: appended.append(given))  # fmt: skip
    rows = torch.tensor([2, 3, 1])
    for row, prompt in zip(rows.tolist(), PROMPTS, strict=True):
        target.prefill(row, prompt)
    lens = torch.tensor([len(prompt) for prompt in PROMPTS])
    state = DDTreeDraftInput.between_rounds(torch.tensor([next_token(p) for p in PROMPTS]), lens)
    emitted = [[*prompt, next_token(prompt)] for prompt in PROMPTS]
    num_kept, published = 0, []
    for _ in range(12):
        state.reserved_seq_lens_cpu = (lens + 40).to(torch.int32)
        state.reserved_seq_lens_sum = int(lens.sum()) + 120
        batch = SimpleNamespace(
            seq_lens=lens, seq_lens_cpu=None, seq_lens_sum=None, req_pool_indices=rows, spec_info=state,
            sampling_info=None, forward_mode=ForwardMode.DECODE, is_extend_in_batch=False,
        )  # fmt: skip
        result = worker.forward_batch_generation(batch, published.append)
        stride, kept = result.speculative_num_draft_tokens, result.accept_lens.tolist()
        for request, (text, number) in enumerate(zip(emitted, kept, strict=True)):
            first = request * stride
            text.extend(result.next_token_ids[first : first + number].tolist())
            assert text == texts[request][: len(text)]
            check_features(appended[-1], (request, stride), number, text, int(lens[request]))
        assert torch.equal(result.new_seq_lens, lens + result.accept_lens)
        assert torch.equal(published[-1], result.new_seq_lens)
        num_kept += sum(kept) - len(kept)
        lens, state = result.new_seq_lens, result.next_draft_input
        assert state.bonus_tokens.tolist() == [text[-1] for text in emitted]
    assert num_kept > 12  # so that paths were really walked and moved


def check_features(given, place, number, text, length):
    """The drafter's cache gets the kept nodes' features at their positions and slots."""
    request, stride = place
    rows = slice(request * stride, request * stride + number)
    wanted = [[text[length + i], length + i] for i in range(number)]
    assert given["target_hidden"][rows].tolist() == wanted
    assert given["positions"][rows].tolist() == [position for _, position in wanted]
    assert given["cache_loc"][rows].tolist() == given["cache_loc_2d"][request, :number].tolist()
    assert int(given["commit_lens"][request]) == number
