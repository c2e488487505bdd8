"""The products that the layers are made of."""

import pytest
import torch

from draftbench.engine import layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", ["plain", "blocked"])
@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_both_orders_give_the_product(monkeypatch, dtype, order, num_rows):
    monkeypatch.setattr(layers, "fastest_for_one_row", lambda dtype: order)
    weight = torch.randn(24, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
    x = torch.randn(num_rows, 40, generator=torch.Generator().manual_seed(2)).to(dtype)
    found = layers.Linear(weight)(x)
    assert found.shape == (num_rows, 24)
    expected = (x.double() @ weight.double().T).to(dtype)
    torch.testing.assert_close(found, expected)


def test_the_faster_order_is_chosen(monkeypatch):
    # In turns plain and blocked; the last turn is disturbed.
    seconds = iter([3.0, 2.0] * (layers.NUM_TURNS - 1) + [3.0, 9.0])
    monkeypatch.setattr(layers, "timeit", lambda run, number: next(seconds))
    assert layers.fastest_for_one_row.__wrapped__(torch.float32) == "blocked"
