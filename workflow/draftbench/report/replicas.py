"""What a cost-scaled replica is called: the small model that it computes, at the cost of another shape."""

from draftbench.report.summary import ModelInfo, Summary
from draftbench.report.tex import number

_WORDS = {
    "num_layers": "{} layers",
    "hidden_factor": "{} times the small model’s hidden width",
    "intermediate_size": "intermediate size {}",
    "num_attention_heads": "{} heads",
    "num_key_value_heads": "{} KV heads",
    "num_drafter_layers": "{} layers of the drafter",
    "weight_bits": "{}-bit weights",
}


def replicas(summary: Summary) -> list[str]:
    """Names of the models that are cost-scaled replicas."""
    return [name for name, model in summary.models.items() if model.scale_to is not None]


def replica_sentence(summary: Summary, name: str) -> str | None:
    """What a replica is, and what its numbers are of; None for a model that is none."""
    if summary.models[name].scale_to is None:
        return None
    return (
        f"{name} is a cost-scaled replica: it computes the small model’s function at the cost of another "
        "shape. In exact arithmetic its tokens, and so its texts and its acceptance, are the small model’s; "
        "rounding parts them at near ties. Its times are those of the shape."
    )


def shape_text(model: ModelInfo) -> str:
    """The shape whose cost a replica has: layers, widths, heads, bytes as far as they are stated."""
    shape = model.scale_to or {}
    return ", ".join(
        words.format(shape[key]) for key, words in _WORDS.items() if shape.get(key)
    ) + _bytes_text(model)


def _bytes_text(model: ModelInfo) -> str:
    sizes = (("target", model.target_bytes), ("drafter", model.drafter_bytes))
    known = [f"{name} {number(size / 1e9, 1)}\u00a0GB" for name, size in sizes if size is not None]
    return f"; {', '.join(known)}" if known else ""
