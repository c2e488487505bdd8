"""Logit gaps where outputs part, of the audit that the reference's own server made of it."""

from draftbench.records import NearTie
from draftbench.report.near_ties import near_ties_of, resolution_of
from draftbench.report.outputs import OutputPair
from draftbench.stats.exactness import LogitGap


def audited_gap(pair: OutputPair) -> LogitGap | None:
    """The gap of the two tokens where a pair parts.

    None where the pair does not part, the reference was not audited, the server's own differences are not
    known, or the audit kept too few candidates to tell.
    """
    audits = pair.reference_result.audit
    if pair.candidates is None or audits is None:
        return None
    resolution = resolution_of(audits)
    near_ties = near_ties_of(audits, pair.reference.request_id)
    if resolution is None or near_ties is None:
        return None
    position, baseline_token, method_token = pair.candidates
    gap, is_exact = _gap(near_ties.get(position), audits.margin, baseline_token, method_token)
    return LogitGap(gap, resolution) if is_exact or gap > resolution else None


def _gap(
    near_tie: NearTie | None, margin: float, baseline_token: int, method_token: int
) -> tuple[float, bool]:
    """|gap| of two tokens and True, or what it is at least and False."""
    if near_tie is None:  # the baseline's token is the best, and no other comes near it
        return margin, False
    gaps = dict(zip(near_tie.token_ids, near_tie.gaps, strict=True))
    least = near_tie.gaps[-1]  # candidates that were not kept are no nearer to the best
    one, other = gaps.get(baseline_token, least), gaps.get(method_token, least)
    return abs(one - other), baseline_token in gaps and method_token in gaps
