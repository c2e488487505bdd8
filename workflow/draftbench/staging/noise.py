"""Random floating-point numbers made from random bits: as fast as memory takes them, finite and never zero.

Sign, mantissa and the two lowest exponent bits are random, the other exponent bits are fixed: magnitudes
lie in [2**-7, 2**-3), so a product with a normalised input of some hundred entries is of the order of one.
"""

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[Any]

# dtype name of a safetensors header -> (word type, bits that are random, bits that are set)
_BITS: dict[str, tuple[type[np.unsignedinteger[Any]], int, int]] = {
    "BF16": (np.uint16, 0x81FF, 0x3C00),
    "F16": (np.uint16, 0x8FFF, 0x2000),
    "F32": (np.uint32, 0x81FFFFFF, 0x3C000000),
}
WORD_TYPES = {name: word for name, (word, _, _) in _BITS.items()}


class Noise:
    """The random stream of one tensor: the same seed and name give the same numbers on every machine.

    Attributes:
        dtype: `BF16`, `F16` or `F32`.
    """

    def __init__(self, seed: int, name: str, dtype: str) -> None:
        self.dtype = dtype
        self._word, random_bits, set_bits = _BITS[dtype]
        copies = 8 // np.dtype(self._word).itemsize
        width = 64 // copies
        self._random_bits = np.uint64(sum(random_bits << (width * i) for i in range(copies)))
        self._set_bits = np.uint64(sum(set_bits << (width * i) for i in range(copies)))
        self._bits = np.random.SFC64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))

    def take(self, count: int) -> Words:
        """The next `count` numbers, as the words that hold their bits."""
        per_word = 8 // np.dtype(self._word).itemsize
        words = self._bits.random_raw(-(-count // per_word))
        np.bitwise_and(words, self._random_bits, out=words)
        np.bitwise_or(words, self._set_bits, out=words)
        return words.view(self._word)[:count]
