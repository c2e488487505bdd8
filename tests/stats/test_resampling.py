import numpy as np
import pytest

from draftbench.stats.resampling import draw_counts, every_count, variance_components


@pytest.mark.parametrize(("shape", "tolerance"), [((2, 5), 1e-12), ((4, 5), 1e-12), ((6, 8), 0.03)], ids=str)
def test_the_parts_are_those_of_an_analysis_of_variance(shape, tolerance):
    """Of a mean over sessions and prompts, each part is known from the table's mean squares.

    Few units are resampled in every way there is, and have them exactly.
    """
    num_sessions, num_prompts = shape
    generator = np.random.default_rng(7)
    table = generator.normal(0, 0.1, (num_sessions, 1)) + generator.normal(0, 0.2, (1, num_prompts))
    table += generator.normal(0, 0.3, shape)

    def mean(session_counts, prompt_counts):
        return np.einsum("bs,bs->b", session_counts, prompt_counts @ table.T) / table.size

    found = variance_components(mean, num_sessions, num_prompts, max_resamples=100_000, seed=1)
    by_session, by_prompt = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    rest = table - by_session - by_prompt + table.mean()
    num_free = (num_sessions - 1) * (num_prompts - 1)
    assert found.session == pytest.approx(by_session.var(ddof=1) / num_sessions, rel=tolerance)
    assert found.prompt == pytest.approx(by_prompt.var(ddof=1) / num_prompts, rel=tolerance)
    assert found.interaction == pytest.approx((rest**2).sum() / num_free / table.size, rel=tolerance)


def test_every_resample_is_there_once_with_the_probability_that_draws_find():
    counts, weights = every_count(4)
    assert len(np.unique(counts, axis=0)) == len(counts) == 35
    assert (counts.sum(axis=1) == 4).all()
    drawn = draw_counts(4, 100_000, np.random.default_rng(1))
    found = (drawn[:, None] == counts).all(axis=2).mean(axis=0)
    assert found == pytest.approx(weights, abs=0.005)
