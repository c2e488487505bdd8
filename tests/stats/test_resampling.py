import numpy as np
import pytest

from draftbench.stats.resampling import variance_components


@pytest.mark.parametrize("shape", [(2, 5), (3, 5), (6, 8)], ids=str)
def test_the_parts_are_those_of_an_analysis_of_variance(shape):
    """Of a mean over sessions and prompts, each part is known from the table's mean squares."""
    num_sessions, num_prompts = shape
    generator = np.random.default_rng(7)
    table = generator.normal(0, 0.1, (num_sessions, 1)) + generator.normal(0, 0.2, (1, num_prompts))
    table += generator.normal(0, 0.3, shape)

    def mean(session_counts, prompt_counts):
        return np.einsum("bs,bs->b", session_counts, prompt_counts @ table.T) / table.size

    found = variance_components(mean, num_sessions, num_prompts, num_resamples=100_000, seed=1)
    by_session, by_prompt = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    rest = table - by_session - by_prompt + table.mean()
    num_free = (num_sessions - 1) * (num_prompts - 1)
    assert found.session == pytest.approx(by_session.var(ddof=1) / num_sessions, rel=0.03)
    assert found.prompt == pytest.approx(by_prompt.var(ddof=1) / num_prompts, rel=0.03)
    assert found.interaction == pytest.approx((rest**2).sum() / num_free / table.size, rel=0.03)
