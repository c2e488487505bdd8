"""Whole rounds of the worker on a CPU, its forwards those of a target and a drafter that can be foretold.

The target's cache is real memory: it holds each token and its position, and the target reads from it what it
sees. So a wrong slot, position, mask, move or length gives other tokens than decoding one at a time.
"""

import os
import threading
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
from sglang_ddtree.shards import Head, ShardRanking
from sglang_ddtree.trees import ChainBuilder, TreeBuilder
from tests.sglang_ddtree.groups import World

from sglang_ddtree import targets
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

    def __init__(self, texts, block, follows=True):
        self.texts, self.block, self.generator = texts, block, torch.Generator().manual_seed(3)
        self.follows = follows  # whether the target says these texts

    def forward(self, forward_batch):
        ids, positions = forward_batch.input_ids.view(-1, BLOCK), forward_batch.positions.view(-1, BLOCK)
        assert (ids[:, 1:] == MASK).all()
        logits = torch.randn(*ids.shape, VOCABULARY, generator=self.generator)
        for request, text in enumerate(self.texts):
            first = int(positions[request, 0])
            assert text[first] == ids[request, 0] or not self.follows
            assert positions[request].tolist() == list(range(first, first + BLOCK))
            for slot in range(1, BLOCK):
                logits[request, slot, text[first + slot]] += 2.5
        output = SimpleNamespace(hidden_states=logits.flatten(0, 1))
        return SimpleNamespace(logits_output=output, can_run_graph=False)


ALONE = SimpleNamespace(world_size=1, rank_in_group=0)


def make_proposer(width, builder_class, group):
    """Of the whole head, or of a rank's part of it."""
    head, builder = torch.eye(VOCABULARY), builder_class(BLOCK - 1, width - 1, "cpu")
    if group.world_size == 1:
        return TreeProposer(head, builder, BLOCK)
    size = -(-VOCABULARY // group.world_size)
    first = size * group.rank_in_group
    part = Head(head[first : first + size], first)
    return TreeProposer(part.weight, builder, BLOCK, ShardRanking(part, group))


def make_worker(target, drafter, width, builder_class, group=ALONE):
    worker = worker_module.DDTreeWorker.__new__(worker_module.DDTreeWorker)
    values = {
        "device": "cpu",
        "block_size": BLOCK,
        "model_runner": target.model_runner,
        "draft_model_runner": drafter,
        "_target_worker": target,
        "_width": width,
        "_path_length": min(BLOCK, width),
        "_group": group,
        "_proposer": make_proposer(width, builder_class, group),
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
    return worker


@pytest.fixture(autouse=True)
def appended(monkeypatch):
    """Leave out what only a GPU has; collects what the drafter's cache is given."""
    given = []
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
    monkeypatch.setattr(worker_module.DDTreeWorker, "_append_target_hidden_to_draft_kv_by_loc",
                        lambda _worker, **fields: given.append(fields))  # fmt: skip
    return given


def extend_slots(req_pool_indices, req_to_token, start_offset, draft_token_num, **_):
    places = start_offset.unsqueeze(1) + torch.arange(draft_token_num)
    return req_to_token[req_pool_indices.unsqueeze(1), places].long().flatten()


def run_rounds(worker, target, texts, appended, sampling_info=None):
    """Twelve rounds of all requests: their texts, and how many draft tokens were kept. Checks each round."""
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
            sampling_info=sampling_info, forward_mode=ForwardMode.DECODE, is_extend_in_batch=False,
        )  # fmt: skip
        result = worker.forward_batch_generation(batch, published.append)
        stride, kept = result.speculative_num_draft_tokens, result.accept_lens.tolist()
        for request, (text, number) in enumerate(zip(emitted, kept, strict=True)):
            first = request * stride
            text.extend(result.next_token_ids[first : first + number].tolist())
            if sampling_info is None:
                assert text == texts[request][: len(text)]
            check_features(appended[-1], (request, stride), number, text, int(lens[request]))
        assert torch.equal(result.new_seq_lens, lens + result.accept_lens)
        assert torch.equal(published[-1], result.new_seq_lens)
        num_kept += sum(kept) - len(kept)
        lens, state = result.new_seq_lens, result.next_draft_input
        assert state.bonus_tokens.tolist() == [text[-1] for text in emitted]
    return emitted, num_kept


@pytest.mark.parametrize(
    ("width", "builder_class"),
    [
        *((width, TreeBuilder) for width in (9, 17)),
        *((width, KernelTreeBuilder) for width in (2, 9, 13, 17, 33)),
        *((width, ChainBuilder) for width in (9, 16)),
    ],
)
def test_rounds_emit_what_decoding_one_token_at_a_time_emits(width, builder_class, appended):
    texts = [continued(prompt, 150) for prompt in PROMPTS]
    target = Target(len(PROMPTS))
    worker = make_worker(target, Drafter(texts, BLOCK), width, builder_class)
    _, num_kept = run_rounds(worker, target, texts, appended)
    assert num_kept > 12  # so that paths were really walked and moved


@pytest.mark.parametrize(("num_gpus", "width", "builder_class"), [
    (2, 17, TreeBuilder), (4, 9, TreeBuilder), (8, 9, KernelTreeBuilder), (3, 16, ChainBuilder),
])  # fmt: skip
def test_every_gpu_emits_and_keeps_the_same_as_one_alone(num_gpus, width, builder_class, appended):
    texts = [continued(prompt, 150) for prompt in PROMPTS]

    def work(group):
        target = Target(len(PROMPTS))
        worker = make_worker(target, Drafter(texts, BLOCK), width, builder_class, group)
        return run_rounds(worker, target, texts, appended)

    alone = work(ALONE)
    assert World(num_gpus).run(work) == [alone] * num_gpus


def test_what_is_drawn_is_the_first_gpus_on_every_gpu(appended, monkeypatch):
    """Each GPU draws by a generator of its own, so that they would part at once."""
    texts = [continued(prompt, 400) for prompt in PROMPTS]
    own = {}

    def draw(probabilities):
        found = probabilities.argmax(-1, keepdim=True)
        noise = torch.rand(len(found), generator=own[threading.get_ident()]) < 0.02
        return None, torch.where(noise.unsqueeze(1), (found + 1) % (VOCABULARY - 1), found)

    def work(group):
        own[threading.get_ident()] = torch.Generator().manual_seed(group.rank_in_group)
        target = Target(len(PROMPTS))
        worker = make_worker(target, Drafter(texts, BLOCK, follows=False), 9, TreeBuilder, group)
        return run_rounds(worker, target, texts, appended, SimpleNamespace(is_all_greedy=False))

    monkeypatch.setattr(targets, "apply_dflash_verify_logits_adjustments", lambda **_: None)
    monkeypatch.setattr(targets, "is_dflash_sampling_verify_available", lambda: True)
    monkeypatch.setattr(
        targets,
        "build_dflash_verify_target_probs",
        lambda next_token_logits, bs, **_: next_token_logits.view(bs, -1, VOCABULARY),
    )
    monkeypatch.setattr(targets, "fast_sample", draw)
    monkeypatch.setattr(DDTreeDraftInput, "max_top_k", 1)
    monkeypatch.setattr(worker_module.DDTreeWorker, "_validate_phase1_sampling_support", lambda *_: None)
    first, second = World(2).run(work)
    assert first == second
    assert first[0] != [text[: len(found)] for text, found in zip(texts, first[0], strict=True)]


def check_features(given, place, number, text, length):
    """The drafter's cache gets the kept nodes' features at their positions and slots."""
    request, stride = place
    rows = slice(request * stride, request * stride + number)
    wanted = [[text[length + i], length + i] for i in range(number)]
    assert given["target_hidden"][rows].tolist() == wanted
    assert given["positions"][rows].tolist() == [position for _, position in wanted]
    assert given["cache_loc"][rows].tolist() == given["cache_loc_2d"][request, :number].tolist()
    assert int(given["commit_lens"][request]) == number
