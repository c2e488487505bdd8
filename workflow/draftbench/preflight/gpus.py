"""As many GPUs as the campaign needs, large enough and in nobody else's use."""

import os

from draftbench import host
from draftbench.config import Campaign, SglangEngine
from draftbench.errors import ConfigError, ServerError
from draftbench.plan import Plan
from draftbench.servers import proc
from draftbench.servers.base import MARKER
from draftbench.servers.gpu import GpuReader, choose_gpus, owner, read_gpus
from draftbench.servers.process import token_prefix
from draftbench.servers.systemd import control_groups
from draftbench.staging.place import expected_bytes


def check_gpus(campaign: Campaign, engine: SglangEngine, read: GpuReader = read_gpus) -> None:
    """As many GPUs as the largest TP size, none of them in use by a stranger.

    What the campaign displaces, and what it has started itself, is no stranger.

    Raises:
        ServerError: there are fewer, or a foreign process computes on one.
    """
    gpus = choose_gpus(read(), max(campaign.tp), os.environ | engine.environment)
    for gpu in gpus:
        for pid in gpu.pids:
            if host.start_ticks(pid) is not None and not _is_known(pid, campaign):
                raise ServerError(
                    f"expected GPU {gpu.index} to be free, but process {pid} of user {owner(pid)} "
                    f"({proc.command(pid)}) computes on it; wait for it, end it if it is yours, or name its "
                    "unit in supervisor.displace"
                )


def check_gpu_memory(campaign: Campaign, engine: SglangEngine, read: GpuReader = read_gpus) -> None:
    """The weights fit into the share of GPU memory that SGLang may use, at every TP size.

    Raises:
        ConfigError: they do not.
    """
    gpus = choose_gpus(read(), max(campaign.tp), os.environ | engine.environment)
    room_bytes = min(gpu.total_mib for gpu in gpus) * 2**20 * engine.mem_fraction_static
    services = Plan(campaign).services.values()
    for name, model in campaign.models.items():
        sizes = [service.tp for service in services if service.model == name]
        if not sizes:
            continue  # `only` leaves it out everywhere
        parts = [model.target] if model.drafter is None else [model.target, model.drafter]
        weight_bytes = sum(expected_bytes(source) for source in parts)
        share_bytes = weight_bytes / min(sizes)
        if share_bytes > room_bytes:
            raise ConfigError(
                f"models.{name}: expected at most {room_bytes / 1e9:.0f} GB of weights a GPU at "
                f"engine.mem_fraction_static {engine.mem_fraction_static:g}, got {share_bytes / 1e9:.0f} GB "
                f"at tp {min(sizes)}; raise tp or mem_fraction_static"
            )


def _is_known(pid: int, campaign: Campaign) -> bool:
    is_ours = (proc.variable(pid, MARKER) or "").startswith(token_prefix())
    return is_ours or not control_groups(pid).isdisjoint(campaign.supervisor.displace)
