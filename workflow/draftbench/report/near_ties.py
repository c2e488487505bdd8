"""What a server's audit of its outputs says: what it resolves, and where another token comes that near."""

from draftbench.records import NearTie, OutputAudits
from draftbench.stats.exactness import measured_resolution


def resolution_of(audits: OutputAudits) -> float | None:
    """Gaps up to this are ties; None where the server's own differences are not known."""
    noise = audits.noise
    return None if noise is None else measured_resolution(noise.num_positions, noise.rms, noise.largest)


def near_ties_of(audits: OutputAudits, request_id: str) -> dict[int, NearTie] | None:
    """Position -> near tie along one output; None where it was not audited."""
    for output in audits.outputs:
        if request_id in output.request_ids:
            return {near_tie.position: near_tie for near_tie in output.near_ties}
    return None


def num_near_ties(audits: OutputAudits | None, request_id: str) -> int | None:
    """Positions of one output at which the two best tokens are a tie; None where that is not known."""
    resolution = None if audits is None else resolution_of(audits)
    if audits is None or resolution is None or resolution > audits.margin:
        return None
    found = near_ties_of(audits, request_id)
    if found is None:
        return None
    return sum(len(near_tie.gaps) > 1 and near_tie.gaps[1] <= resolution for near_tie in found.values())
