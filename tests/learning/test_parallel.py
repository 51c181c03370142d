"""Ranks in processes of their own."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from srl.core.errors import StreamError
from srl.learning import parallel
from srl.learning.parallel import OnOneHost, TrainerGroup
from srl.testing.shares import learn_together

SPAWN = multiprocessing.get_context("spawn")
DEADLINE_SECONDS = 120


def _join(folder: Path, rank: int) -> TrainerGroup:
    point = OnOneHost(folder / "ranks")
    return TrainerGroup(point, life=1, policy="main", rank=rank, size=2, device="cpu")


def _run(function, folder, *, expect=(0, 0)):
    """Call `function(folder, rank)` in two processes; a failed check is an exit code."""
    processes = [SPAWN.Process(target=function, args=(folder, rank)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(DEADLINE_SECONDS)
    codes = tuple(process.exitcode for process in processes)
    for process in processes:
        process.kill()
    assert codes == expect


def _talk(folder, rank):
    group = _join(folder, rank)
    for ranks in (group.learner, group.meeting):
        assert (ranks.rank, ranks.size) == (rank, 2)
        gradient = torch.nn.Parameter(torch.full((3, 2), 1.5 + rank))
        ranks.sum_(gradient)
        assert gradient.tolist() == [[4.0] * 2] * 3
        column = torch.full((3, 2), 1.0)
        ranks.sum_(column[:, 0])  # not contiguous
        assert column.tolist() == [[2.0, 1.0]] * 3
        exact = torch.tensor(2**40 + rank / 1024, dtype=torch.float64)
        ranks.sum_(exact)
        assert exact.item() == 2**41 + 1 / 1024
        number = torch.tensor([rank + 1])
        ranks.sum_(number)
        assert number.item() == 3
        assert ranks.gather([rank, 1 / 3]) == [[0.0, 1 / 3], [1.0, 1 / 3]]
        noise = torch.randn(1000, generator=torch.Generator().manual_seed(rank))
        ranks.sum_(noise)
        low, high = ranks.gather([float(noise.double().sum())])
        assert low == high  # the same bits on every rank
    group.close()
    group.close()


def test_ranks_sum_and_gather(tmp_path):
    _run(_talk, tmp_path)


def _lose(folder, rank):
    group = _join(folder, rank)
    joined = folder / "joined"
    if rank == 1:
        while not joined.exists():  # the other one may still be joining
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    joined.touch()
    for ranks in (group.meeting, group.learner):
        with pytest.raises(StreamError, match="rank 0 of the 2 trainers of policy 'main' has lost"):
            ranks.gather([1.0])
    group.close()


def test_rank_that_dies_is_an_error_that_names_the_group(tmp_path):
    _run(_lose, tmp_path, expect=(0, -signal.SIGKILL))


def _be_late(folder, rank):
    parallel.LEARN_SECONDS = 0.5
    group = _join(folder, rank)
    if rank == 1:
        group.meeting.gather([1.0])  # in the meeting the other may take its time
    else:
        with pytest.raises(StreamError, match="took too long"):
            group.learner.gather([1.0])
        group.meeting.gather([1.0])
    group.close()


def test_rank_that_does_not_answer_while_learning_is_an_error(tmp_path):
    _run(_be_late, tmp_path)


def _listen(folder, rank):
    group = _join(folder, rank)
    group.learner.gather([1.0])
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        target = os.readlink(entry) if entry.exists() or entry.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    mine = [line.split() for line in lines if line.split()[9] in inodes]
    assert mine
    assert all(words[1].startswith("0100007F:") for words in mine), mine  # 127.0.0.1
    tcp6 = Path("/proc/self/net/tcp6")
    six = tcp6.read_text().splitlines()[1:] if tcp6.exists() else []
    assert not [line for line in six if line.split()[9] in inodes]
    group.close()


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="no /proc")
def test_ranks_listen_on_loopback_only(tmp_path):
    _run(_listen, tmp_path)


def _miss(folder, rank):
    if rank == 1:
        return
    parallel.JOIN_SECONDS = 0.5
    with pytest.raises(StreamError, match="could not join the 2 trainers of policy 'main'"):
        _join(folder, rank)


@pytest.mark.slow  # torch itself waits
def test_rank_that_never_comes_is_an_error(tmp_path):
    _run(_miss, tmp_path)


def test_trainers_that_meet_by_network_equal_one_on_the_same_blocks():
    assert max(learn_together([("127.0.0.1", []), ("127.0.0.1", [])])) < 1e-5
