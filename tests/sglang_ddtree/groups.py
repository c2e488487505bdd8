"""GPUs of one model without a GPU.

Either one thread a rank, which run by turns and meet at collectives, or one process a rank.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from sglang_ddtree.proposal import TreeProposer
from sglang_ddtree.shards import Head, ShardRanking
from sglang_ddtree.trees import TreeBuilder
from tests.sglang_ddtree.batched_trees import VOCABULARY

LIMIT_S = 90


class World:
    """Runs the same work on every rank, one at a time, so that it need not be safe in threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._turn = threading.Lock()
        self._meeting = threading.Barrier(size)
        self._given: dict[int, torch.Tensor] = {}

    def run(self, work: Callable[["ThreadGroup"], Any]) -> list[Any]:
        """What the work gives on every rank."""

        def begin(rank: int) -> Any:
            with self._turn:
                try:
                    return work(ThreadGroup(self, rank))
                except BaseException:
                    self._meeting.abort()
                    raise

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(begin, range(self.size)))

    def exchange(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What every rank gave."""
        self._given[rank] = tensor.clone()
        self._meet()
        found = [self._given[one] for one in range(self.size)]
        self._meet()
        return found

    def _meet(self) -> None:
        self._turn.release()
        try:
            self._meeting.wait(LIMIT_S)
        finally:
            self._turn.acquire()


class ThreadGroup:
    """One rank's view of a world, with the collectives that the plugin uses."""

    def __init__(self, world: World, rank: int) -> None:
        self.world_size, self.rank_in_group = world.size, rank
        self._world = world

    def all_gather(self, input_: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cat(self._world.exchange(self.rank_in_group, input_), dim=dim)

    def broadcast(self, input_: torch.Tensor, src: int) -> torch.Tensor:
        return input_.copy_(self._world.exchange(self.rank_in_group, input_)[src])


def part_bounds(vocabulary: int, num_parts: int) -> list[tuple[int, int]]:
    """First and last tokens of the parts as SGLang makes them: equal, but padding to 64 shortens the last."""
    size = -(-vocabulary // 64) * 64 // num_parts
    return [(min(i * size, vocabulary), min((i + 1) * size, vocabulary)) for i in range(num_parts)]


def propose(group: Any) -> list[Any]:
    """A rank's trees of three requests, of its part of a head and of the same hidden states on all ranks."""
    of_head, of_states = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    first, last = part_bounds(VOCABULARY, group.world_size)[group.rank_in_group]
    head = Head(torch.randn(VOCABULARY, 24, generator=of_head)[first:last], first)
    ranking = {} if group.world_size == 1 else {"rank": ShardRanking(head, group)}
    proposer = TreeProposer(head.weight, TreeBuilder(15, 16, "cpu"), 16, **ranking)
    proposer.reserve(4)
    proposer(torch.randn(4 * 16, 24, generator=of_states), torch.arange(4 * 16))
    return [field.tolist() for field in proposer.captured(3)]


def run_processes(target: Callable[..., None], size: int, folder: Path) -> list[Any]:
    """What each rank's process puts into a queue with its rank; they meet by a file in the folder."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    address = f"file://{folder / 'meeting'}"
    workers = [spawn.Process(target=target, args=(rank, size, address, results)) for rank in range(size)]
    # The host's name need not lead to an address.
    with patch.dict(os.environ, GLOO_SOCKET_IFNAME="lo"):
        for worker in workers:
            worker.start()
    try:
        found = dict(results.get(timeout=LIMIT_S) for _ in workers)
    finally:
        for worker in workers:
            worker.join(10)
            worker.kill()
    return [found[rank] for rank in range(size)]
