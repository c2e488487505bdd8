"""What the numbers are of, so that nobody takes them for more."""

from draftbench.report.prose import joined
from draftbench.report.summary import Summary
from draftbench.report.tex import count, number


def scope_sentence(summary: Summary) -> str:
    """Decoding, prompts, replies and load that were measured."""
    most = max((row.concurrency for row in summary.loads if row.num_sessions), default=1)
    load = (
        f"at most {most} requests in flight, each sent when one ends" if most > 1 else "one request at a time"
    )
    return (
        f"All of this is of greedy decoding, {_prompts(summary)}{_replies(summary)}, and {load}. "
        "Sampling, longer contexts and more load are other measurements."
    )


def _prompts(summary: Summary) -> str:
    """Their tokens: those of conversations, whose context grows, apart from the others."""
    ranges = summary.prompt_tokens
    others = [bounds for kind, bounds in ranges.items() if kind != "agentic"]
    parts = []
    if others:
        parts.append(_range(min(low for low, _ in others), max(high for _, high in others)))
    if "agentic" in ranges:
        parts.append(f"{_range(*ranges['agentic'])} in conversations")
    return f"prompts of {joined(parts)}, " if parts else ""


def _range(low: int, high: int) -> str:
    return f"{number(low, 0)} to {number(high, 0)} tokens" if low < high else count(low, "token")


def _replies(summary: Summary) -> str:
    run_on = {workload.ignore_eos for workload in summary.workloads}
    if run_on == {True}:
        return "replies that run on to the length asked"
    return (
        "replies to the model’s own end"
        if run_on == {False}
        else "replies that end as the table of workloads says"
    )
