import pytest
import torch

from srl.core.errors import StreamError
from srl.testing.fakes import ThreadRanks, run_ranks


def test_ranks_sum_tensors_of_any_type_in_place():
    def work(ranks: ThreadRanks):
        parameter = torch.nn.Parameter(torch.full((2, 3), float(ranks.rank + 1)))
        count = torch.tensor(10**15 + ranks.rank, dtype=torch.float64)
        number = torch.tensor([ranks.rank])
        for tensor in (parameter, count, number):
            ranks.sum_(tensor)
        ranks.sum_(parameter.detach()[0])  # a view
        return parameter.tolist(), count.item(), number.item()

    expected = ([[18.0] * 3, [6.0] * 3], 3 * 10**15 + 3.0, 3)
    assert run_ranks(3, work) == [expected] * 3


def test_ranks_gather_by_rank():
    def work(ranks: ThreadRanks):
        return [ranks.gather([ranks.rank, step]) for step in range(100)]

    for gathered in run_ranks(2, work):
        assert gathered == [[[0.0, step], [1.0, step]] for step in range(100)]


def test_rank_that_fails_wakes_the_others():
    def work(ranks: ThreadRanks):
        if ranks.rank == 1:
            raise ZeroDivisionError
        ranks.gather([0])

    with pytest.raises(ZeroDivisionError):
        run_ranks(2, work)


def test_rank_that_does_not_come_is_an_error():
    ranks, _ = ThreadRanks.group(2, seconds=0.01)
    with pytest.raises(StreamError, match="rank 0 of 2 was left by another"):
        ranks.gather([1])


def test_ranks_must_give_equally_many_values():
    with pytest.raises(StreamError, match="different numbers of values"):
        run_ranks(2, lambda ranks: ranks.gather([0] * (1 + ranks.rank)))
