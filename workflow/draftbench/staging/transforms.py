"""Exact transforms of a staged checkpoint: another form or cost, the same function."""

from collections.abc import Callable, Mapping
from pathlib import Path

from draftbench.config import Source

# (folder of the checkpoint, folder to write, parameters) -> None; raises StagingError.
Transform = Callable[[Path, Path, Mapping[str, int]], None]


def _scale_to(source: Path, out: Path, parameters: Mapping[str, int]) -> None:
    """The same model at the cost of a larger one."""
    # Imported here because only scaled campaigns need it.
    from draftbench.staging.scale import ScaledShape, scale_checkpoint  # noqa: PLC0415

    scale_checkpoint(source, out, ScaledShape.from_mapping(dict(parameters)))


# Key of a source in the campaign -> transform that it asks for.
TRANSFORMS: dict[str, Transform] = {"scale_to": _scale_to}


def wanted_transforms(source: Source) -> list[tuple[Transform, Mapping[str, int]]]:
    """The transforms that a source asks for, each with its parameters, in the order they are made."""
    asked = ((transform, getattr(source, key)) for key, transform in TRANSFORMS.items())
    return [(transform, parameters) for transform, parameters in asked if parameters is not None]
