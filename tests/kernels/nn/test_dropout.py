"""Dropout keyed by identity."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.nn.dropout import dropout
from kernels.rng import Purpose, stream_key

KEY = stream_key(Purpose.DROPOUT, 1, 2, 3, 0)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_drops_the_share_asked_for_and_scales_the_rest(probability: float) -> None:
    out = dropout(torch.ones(1000, 200), probability, KEY)
    share = float((out == 0).double().mean())
    assert abs(share - probability) < 5 * (probability * (1 - probability) / out.numel()) ** 0.5
    torch.testing.assert_close(out[out != 0].unique(), torch.tensor([1 / (1 - probability)]), rtol=1e-4, atol=0)


def test_elements_are_dropped_independently() -> None:
    kept = (dropout(torch.ones(1000, 256), 0.5, KEY) != 0).double().numpy() - 0.5
    bound = 5 * 0.25 / kept.size**0.5
    for shift in (1, 2, 3, 4, 256):
        flat = kept.ravel()
        assert abs(float((flat[shift:] * flat[:-shift]).mean())) < bound


def test_masks_of_different_identities_are_independent() -> None:
    """Of neighboring seeds, epochs, batches and layers, and of a layer's rows and its attention."""
    identities = [(s, e, b, layer, *last) for s in (0, 1) for e in (0, 1, 2) for b in (0, 1) for layer in (0, 1)
                  for last in ((), (1,))]  # fmt: skip
    keys = [stream_key(Purpose.DROPOUT, *identity) for identity in identities]
    kept = np.stack([(dropout(torch.ones(1 << 16), 0.5, key) != 0).numpy() for key in keys])
    correlation = np.corrcoef(kept)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5 / kept.shape[1] ** 0.5


def test_mask_is_a_function_of_the_key_for_any_number_of_threads() -> None:
    x = torch.ones(700, 301)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = dropout(x, 0.3, KEY)
        torch.set_num_threads(4)
        assert torch.equal(dropout(x, 0.3, KEY), alone)
    finally:
        torch.set_num_threads(before)
    assert not torch.equal(dropout(x, 0.3, stream_key(Purpose.DROPOUT, 1, 2, 4, 0)), alone)


def test_gradient_passes_where_elements_were_kept() -> None:
    x = torch.randn(13, 7, requires_grad=True)
    out = dropout(x, 0.4, KEY)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(out == 0, 0.0, out.detach() / x.detach()))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (5, 3)])
def test_any_shape_is_legal(shape: tuple[int, int]) -> None:
    assert dropout(torch.ones(shape), 0.5, KEY).shape == shape


def test_nothing_is_dropped_at_probability_zero() -> None:
    x = torch.ones(3, 3)
    assert dropout(x, 0.0, KEY) is x


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"got 1\.0"):
        dropout(torch.ones(2), 1.0, KEY)
    with pytest.raises(ValueError, match="float64"):
        dropout(torch.ones(2, dtype=torch.float64), 0.5, KEY)


def test_probability_close_to_one_still_keeps_something() -> None:
    assert float(dropout(torch.ones(1 << 20), 1 - 1e-9, KEY).count_nonzero()) > 0
    assert np.isfinite(dropout(torch.ones(1 << 16), 1 - 1e-9, KEY).numpy()).all()
