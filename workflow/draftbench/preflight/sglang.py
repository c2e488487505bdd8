"""What SGLang needs: an environment in which CUDA computes, shapes that split."""

import json
from pathlib import Path

from draftbench.config import Campaign, SglangEngine, Source
from draftbench.errors import ConfigError
from draftbench.servers.sglang_environment import probe
from draftbench.servers.sglang_flags import FORK_SUFFIX, find_flag_table
from draftbench.staging.place import campaign_root, config_folder

UVM = Path("/dev/nvidia-uvm")


def check_tensor_parallel(campaign: Campaign, _engine: SglangEngine) -> None:
    """Heads and intermediate units of target and drafter split over every TP size without a remainder.

    Models whose configuration is not at hand yet are told by the server itself.

    Raises:
        ConfigError: a shape does not split.
    """
    root = campaign_root(campaign)
    for name, model in campaign.models.items():
        for role, source in (("target", model.target), ("drafter", model.drafter)):
            shape = _shape(source, root) if source is not None else None
            for tp in campaign.tp if shape else ():
                for key, size in (shape or {}).items():
                    # SGLang repeats KV heads where there are fewer of them than GPUs.
                    if size % tp and not (key == "num_key_value_heads" and tp % size == 0):
                        raise ConfigError(
                            f"models.{name}.{role}: {key}: expected a multiple of tp {tp}, got {size}; "
                            "remove that TP size or take another shape"
                        )


def check_environment(campaign: Campaign, engine: SglangEngine) -> str:
    """CUDA computes, and SGLang is there in the campaign's version; the note has all versions.

    Raises:
        ConfigError: something is missing or another version; the sentence says what to do.
    """
    facts = probe(engine, starts_cuda=True)
    versions = facts["versions"]
    release = find_flag_table(engine.version).release
    if versions["sglang"] is None or (release is not None and versions["sglang"] != release):
        raise ConfigError(
            f"engine.version: expected SGLang {engine.version} in the environment of {engine.python}, got "
            f"{versions['sglang'] or 'none'}; install it there or correct engine.version or engine.python"
        )
    if facts["error"] is not None:
        raise ConfigError(
            f"expected CUDA to compute in the environment of {engine.python}, got {facts['error']}; "
            f"{_remedy()}"
        )
    drafts_trees = any(method.algorithm == "ddtree" for method in campaign.methods.values())
    if drafts_trees and release is not None and not any("ddtree" in name for name in facts["plugins"]):
        raise ConfigError(
            f"methods: expected a plugin sglang-ddtree in the environment of {engine.python} for ddtree, "
            f"got {', '.join(facts['plugins']) or 'no plugin'}; install one there, name a fork that has "
            f"DDTree as engine.version {release}{FORK_SUFFIX}, or leave the ddtree methods out"
        )
    known = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return f"{known}, CUDA {facts['cuda']}"


def _remedy() -> str:
    if not UVM.exists():
        return f"{UVM} is missing: give the container that device, or run nvidia-modprobe -u -c 0 on the host"
    return "compare the driver (nvidia-smi) with the CUDA version of torch there"


def _shape(source: Source, root: Path) -> dict[str, int] | None:
    keys = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    if source.scale_to is not None:
        return {key: source.scale_to[key] for key in keys if key in source.scale_to}
    folder = config_folder(source, root)
    if folder is None:
        return None
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    return {key: config[key] for key in keys if key in config}
