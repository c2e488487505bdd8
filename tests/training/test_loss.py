"""The hand-written gradient, and the two weightings."""

import pytest
import torch

from draftbench.training.loss import LossSettings, block_loss, emitted_tokens, slot_weights


@pytest.mark.parametrize("weighting", ["decay", "prefix"])
@pytest.mark.parametrize("soft_weight", [0.0, 0.4])
def test_the_gradient_is_that_of_autograd(weighting, soft_weight):
    torch.manual_seed(0)
    settings = LossSettings(weighting=weighting, soft_weight=soft_weight)
    hidden = torch.randn(5, 7, 16, requires_grad=True)
    head, labels, is_valid = torch.randn(40, 16), torch.randint(0, 40, (5, 7)), torch.rand(5, 7) > 0.2
    wanted = torch.randn(5, 7, 16)
    found = block_loss(
        hidden.detach(),
        head,
        labels,
        is_valid,
        target_hidden=wanted if soft_weight else None,
        settings=settings,
    )
    logp = (hidden @ head.T).log_softmax(-1)
    label_logp = logp.gather(2, labels[..., None])[..., 0]
    soft = ((wanted @ head.T).softmax(-1) * logp).sum(-1)
    losses = -(1 - soft_weight) * label_logp - soft_weight * soft
    weights = slot_weights(label_logp.detach().exp(), is_valid, settings)
    total = (losses * weights).sum()
    total.backward()
    assert torch.allclose(found.gradient, hidden.grad, atol=1e-4)
    assert torch.allclose(found.loss_sum, total.detach(), rtol=1e-5)


def test_decay_follows_the_slots():
    weights = slot_weights(
        torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool), LossSettings(decay_slots=2.0)
    )
    assert torch.allclose(weights, torch.tensor([[1.0, 0.60653, 0.36788]]), atol=1e-4)


def test_a_sure_prefix_weighs_every_slot_by_what_follows():
    settings = LossSettings(weighting="prefix")
    weights = slot_weights(torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool), settings)
    assert weights.tolist() == [[3.0, 2.0, 1.0]]


def test_a_lost_prefix_takes_weight_from_later_slots():
    settings = LossSettings(weighting="prefix")
    weights = slot_weights(torch.tensor([[0.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool), settings)
    assert weights.tolist() == [[1.0, 0.5]]


def test_invalid_slots_weigh_nothing():
    is_valid = torch.tensor([[True, False]])
    for weighting in ("decay", "prefix"):
        assert slot_weights(torch.ones(1, 2), is_valid, LossSettings(weighting=weighting))[0, 1] == 0


def test_a_round_emits_the_right_prefix_and_the_bonus():
    is_correct = torch.tensor([[True, True, False, True], [False, True, True, True]])
    emitted, is_full = emitted_tokens(is_correct, torch.ones(2, 4, dtype=torch.bool))
    assert emitted.tolist() == [3, 1]
    assert is_full.all()
