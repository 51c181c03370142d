import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.ops.normalise import merge_moments, moments_of, normalise, rescale_output
from srl.testing.fakes import run_ranks


def test_moments_by_hand():
    count, mean, var = moments_of(torch.tensor([[1.0], [3.0]]))
    assert (float(count), mean.tolist(), var.tolist()) == (2.0, [2.0], [1.0])


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.floats(-1e3, 1e3))
def test_merged_moments_are_those_of_the_union(n, m, shift):
    generator = torch.Generator().manual_seed(n * 10 + m)
    a, b = torch.randn(n, 2, generator=generator), torch.randn(m, 2, generator=generator) + shift
    merged = merge_moments(moments_of(a), moments_of(b))
    for got, want in zip(merged, moments_of(torch.cat([a, b])), strict=True):
        torch.testing.assert_close(got, want)


def test_merge_into_nothing_gives_the_other():
    nothing = (torch.tensor(0.0).double(), torch.zeros(1).double(), torch.ones(1).double())
    rows = moments_of(torch.tensor([[4.0], [8.0]]))
    assert merge_moments(nothing, rows) == rows


def test_normalise_by_hand():
    x = np.array([1, 3, 5], np.float32)
    result = normalise(x, moments_of(torch.tensor([1.0, 3.0])))
    assert result.tolist() == pytest.approx([-1, 1, 3])
    assert result.dtype == np.float32


def test_moments_of_ranks_are_those_of_all_rows():
    rows = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)) + 5
    parts = rows.split([7, 2, 0])
    for moments in run_ranks(3, lambda rank: moments_of(parts[rank.rank], rank.sum_)):
        for got, want in zip(moments, moments_of(rows), strict=True):
            torch.testing.assert_close(got, want)


def test_rescaled_output_keeps_denormalised_values():
    weight, bias, x = torch.randn(3, 1), torch.randn(1), torch.randn(5, 3)
    old, new = (torch.tensor(1.0), torch.tensor(2.0)), (torch.tensor(-3.0), torch.tensor(0.5))
    new_weight, new_bias = rescale_output(weight, bias, old, new)
    before = (x @ weight + bias) * old[1] + old[0]
    torch.testing.assert_close((x @ new_weight + new_bias) * new[1] + new[0], before)
