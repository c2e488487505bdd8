"""Tensors of a model folder's safetensors files, by name."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftbench.errors import ConfigError, ShapeError


class WeightReader:
    """Reads single tensors of a model folder, so that no second copy of the whole model is ever in memory."""

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        """Find the files.

        Raises:
            ConfigError: the folder holds no readable safetensors.
        """
        self.directory = directory
        self._dtype = dtype
        self._device = device
        self._files: dict[str, Any] = {}
        for path in self.paths():
            try:
                stream: Any = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ConfigError(
                    f"expected safetensors in {path}, got {error}; stage the model again"
                ) from error
            self._files.update(dict.fromkeys(stream.keys(), stream))

    def paths(self) -> list[Path]:
        """The folder's weight files, in the order of their names.

        Raises:
            ConfigError: there is none.
        """
        index = self.directory / "model.safetensors.index.json"
        if index.exists():
            names = set(json.loads(index.read_text())["weight_map"].values())
            return [self.directory / name for name in sorted(names)]
        single = self.directory / "model.safetensors"
        if not single.exists():
            raise ConfigError(
                f"expected model.safetensors, got none in {self.directory}; stage the model again"
            )
        return [single]

    def read(self, name: str, *shape: int) -> Tensor:
        """One tensor of the given shape, in the reader's dtype, on its device, in memory of its own.

        Never a view of the file: its pages are small ones, from which a step takes several times as long.

        Raises:
            ConfigError: no such tensor.
            ShapeError: it has another shape.
        """
        if name not in self._files:
            raise ConfigError(
                f"expected the tensor {name}, got none in {self.directory}; stage the model again"
            )
        tensor: Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ShapeError(
                f"expected {name} of shape {list(shape)}, got {list(tensor.shape)} in {self.directory}; "
                "make config.json and weights fit"
            )
        return tensor.to(device=self._device, dtype=self._dtype, copy=True)
