import pytest

from srl.ops.schedules import scheduled


@pytest.mark.parametrize(("progress", "expected"), [(0, 2.0), (0.25, 1.5), (1, 0.0), (1.5, 0.0)])
def test_linear_falls_to_zero(progress, expected):
    assert scheduled(2.0, "linear", progress) == expected


def test_constant_stays():
    assert scheduled(2.0, "constant", 0.7) == 2.0
