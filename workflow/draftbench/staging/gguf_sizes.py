"""How large a GGUF becomes; apart from the conversion, so that asking loads no tokenizer library."""

from pathlib import Path

from draftbench.errors import StagingError

BYTES_PER_WEIGHT = 4  # stored as float32


def num_staged_bytes(source: Path) -> int:
    """The size of the weights after conversion.

    Raises:
        StagingError: the file is no GGUF.
    """
    import gguf  # noqa: PLC0415 - half a second that a staged model need not cost

    try:
        tensors = gguf.GGUFReader(source).tensors
    except (ValueError, OSError) as error:
        raise StagingError(f"{source}: expected a GGUF file, got: {error}") from None
    return BYTES_PER_WEIGHT * sum(int(tensor.n_elements) for tensor in tensors)
