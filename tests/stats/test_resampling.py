import numpy as np
import pytest

from draftbench.stats.resampling import (
    VarianceComponents,
    draw_counts,
    every_count,
    variance_components,
)


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


def test_the_total_is_of_both_causes_less_what_they_share_but_no_less_than_either():
    parts = VarianceComponents(0.05, 0.03, 0.01, num_sessions=3, num_prompts=5)
    assert parts.total == pytest.approx(0.07)
    assert VarianceComponents(0.05, 0.03, 0.04, num_sessions=3, num_prompts=5).total == 0.05
    assert VarianceComponents(0.02, 0.03, 0.04, num_sessions=3, num_prompts=5).total == 0.03
    assert VarianceComponents(0.05, None, 0.0, num_sessions=3, num_prompts=1).total == 0.05
    assert VarianceComponents(None, None, 0.0, num_sessions=1, num_prompts=1).total == 0.0


def test_the_degrees_of_freedom_are_satterthwaite_s_and_no_fewer_than_the_smaller_factor_s():
    def freedom(session, prompt, interaction):
        return VarianceComponents(
            session, prompt, interaction, num_sessions=3, num_prompts=5
        ).degrees_of_freedom

    assert freedom(0.05, 0.03, 0.0) == pytest.approx(0.08**2 / (0.05**2 / 2 + 0.03**2 / 4))
    assert freedom(0.05, 0.03, 0.01) == pytest.approx(0.07**2 / (0.05**2 / 2 + 0.03**2 / 4 + 0.01**2 / 8))
    assert freedom(0.05, 0.0001, 0.0) == pytest.approx(2, rel=0.01)
    assert freedom(0.05, 0.03, 0.045) == 2.0  # what they share is most of it: the formula gives 1.4
    assert freedom(0.0, 0.0, 0.0) == 2.0
    alone = VarianceComponents(0.05, None, 0.0, num_sessions=4, num_prompts=1)
    assert alone.degrees_of_freedom == pytest.approx(3)
