"""The plugin's collectives through SGLang's own group, of two processes on a CPU."""

from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt.plugins", reason="SGLang has an environment of its own")

import torch
from tests.sglang_ddtree.groups import part_bounds, propose, run_processes


def propose_in_sglang(rank, size, address, results):
    """One rank."""
    from sglang.srt.distributed import parallel_state  # noqa: PLC0415  (in its own process)

    torch.set_num_threads(1)
    parallel_state.init_distributed_environment(
        world_size=size, rank=rank, distributed_init_method=address, local_rank=rank, backend="gloo"
    )
    group = parallel_state.init_model_parallel_group(
        [list(range(size))], rank, "gloo", use_pynccl=False, use_custom_allreduce=False, group_name="tp"
    )
    drawn = group.broadcast(torch.full((3, 9), rank), src=0)
    results.put((rank, (propose(group), drawn.tolist())))


def test_sglangs_group_grows_the_trees_of_one_gpu_and_shares_the_first_ones_tokens(tmp_path):
    alone = propose(SimpleNamespace(world_size=1, rank_in_group=0))
    assert run_processes(propose_in_sglang, 2, tmp_path) == [(alone, [[0] * 9] * 3)] * 2


@pytest.mark.parametrize("num_parts", [1, 2, 4, 8])
@pytest.mark.parametrize("vocabulary", [90, 512, 1010, 49152, 151936])
def test_sglang_splits_a_vocabulary_into_the_parts_that_are_tested(vocabulary, num_parts):
    from sglang.srt.layers import vocab_parallel_embedding as layers  # noqa: PLC0415

    padded = layers.pad_vocab_size(vocabulary)
    for rank, bounds in enumerate(part_bounds(vocabulary, num_parts)):
        shard = layers.VocabParallelEmbedding._get_indices(
            padded, padded, vocabulary, vocabulary, rank, num_parts
        )
        assert (shard.org_vocab_start_index, shard.org_vocab_end_index) == bounds
        assert shard.num_org_elements == bounds[1] - bounds[0]
