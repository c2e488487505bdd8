"""Does a drafter fit its target? Told from their configurations, before anything is loaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftbench.config import Method
from draftbench.errors import StagingError


def require_fit(target: Path, drafter: Path, methods: Mapping[str, Method]) -> None:
    """Check that `drafter` is a DFlash drafter for `target` and allows the methods' block sizes.

    Args:
        target: folder of the target.
        drafter: folder of the drafter.
        methods: of the campaign.

    Raises:
        StagingError: one sentence with file, key, expected and got.
    """
    target_file, drafter_file = target / "config.json", drafter / "config.json"
    target_config, drafter_config = _read(target_file), _read(drafter_file)
    target_config = target_config.get("text_config", target_config)  # targets that also see images
    dflash = drafter_config.get("dflash_config")
    if not isinstance(dflash, dict) or not dflash.get("target_layer_ids"):
        raise StagingError(
            f"{drafter_file}: dflash_config: expected target_layer_ids of a DFlash drafter, got {dflash!r}; "
            "give a DFlash drafter in the campaign"
        )
    num_layers = target_config.get("num_hidden_layers")
    pairs = {
        "hidden_size": target_config.get("hidden_size"),
        "vocab_size": target_config.get("vocab_size"),
        "num_target_layers": num_layers,
    }
    for key, wanted in pairs.items():
        got = drafter_config.get(key, wanted if key == "num_target_layers" else None)
        if got != wanted:
            raise _misfit(drafter_file, key, f"{wanted} as in {target_file}", got)
    deepest = max(dflash["target_layer_ids"])
    if deepest >= num_layers:
        raise _misfit(drafter_file, "dflash_config.target_layer_ids", f"layers below {num_layers}", deepest)
    _require_block_size(drafter_file, drafter_config, methods)


def _require_block_size(file: Path, config: Mapping[str, Any], methods: Mapping[str, Method]) -> None:
    trained = config.get("block_size")
    for name, method in methods.items():
        if method.algorithm != "ar" and trained is not None and method.block_size > trained:
            raise StagingError(
                f"methods.{name}.block_size: expected at most {trained}, the block_size in {file}, "
                f"got {method.block_size}; lower it in the campaign"
            )


def _misfit(file: Path, key: str, expected: str, got: Any) -> StagingError:
    return StagingError(
        f"{file}: {key}: expected {expected}, got {got!r}; give a drafter that was trained for this target"
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StagingError(f"{file}: expected a model's configuration, got: {error}") from None
    if not isinstance(config, dict):
        raise StagingError(f"{file}: expected a model's configuration, got {type(config).__name__}")
    return config
