"""Ranks in processes of their own."""

import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path

import pytest
import torch

from srl.core.errors import ConfigError, StreamError
from srl.learning import parallel
from srl.learning.parallel import BetweenHosts, OnOneHost, TrainerGroup
from srl.learning.ranks import join_in_memory
from srl.testing.shares import learn_together

SPAWN = multiprocessing.get_context("spawn")
DEADLINE_SECONDS = 120


def _join(where: tuple[str, Path, int], rank: int) -> TrainerGroup:
    kind, folder, port = where
    point = OnOneHost(folder / "ranks")
    if kind == "network":
        point = BetweenHosts(f"tcp://127.0.0.1:{port}", "127.0.0.1")
    return TrainerGroup(point, life=1, policy="main", rank=rank, size=2, device="cpu")


@pytest.fixture(params=["memory", "network"])
def where(request, tmp_path):
    """How they find each other, in which folder, at which port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return request.param, tmp_path, probe.getsockname()[1]


def _run(function, where, *, expect=(0, 0)):
    """Call `function(where, rank)` in as many processes; a failed check is an exit code."""
    processes = [SPAWN.Process(target=function, args=(where, rank)) for rank in range(len(expect))]
    for process in processes:
        process.start()
    for process in processes:
        process.join(DEADLINE_SECONDS)
    codes = tuple(process.exitcode for process in processes)
    for process in processes:
        process.kill()
    assert codes == expect


def _talk(where, rank):
    group = _join(where, rank)
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


def test_ranks_sum_and_gather(where):
    _run(_talk, where)


def _lose(where, rank):
    group = _join(where, rank)
    joined = where[1] / "joined"
    if rank == 1:
        while not joined.exists():  # the other one may still be joining
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    joined.touch()
    for ranks in (group.meeting, group.learner):
        with pytest.raises(StreamError, match="rank 0 of the 2 trainers of policy 'main' has lost"):
            ranks.gather([1.0])
    group.close()


def test_rank_that_dies_is_an_error_that_names_the_group(where):
    _run(_lose, where, expect=(0, -signal.SIGKILL))


def _be_late(where, rank):
    parallel.LEARN_SECONDS = 0.5
    group = _join(where, rank)
    if rank == 1:
        group.meeting.gather([1.0])  # in the meeting the other may take its time
    else:
        with pytest.raises(StreamError, match="took too long"):
            group.learner.gather([1.0])
        group.meeting.gather([1.0])
    group.close()


def test_rank_that_does_not_answer_while_learning_is_an_error(where):
    _run(_be_late, where)


def _listen(where, rank):
    group = _join(where, rank)
    group.learner.gather([1.0])
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        target = os.readlink(entry) if entry.exists() or entry.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    assert inodes
    for table in (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6")):
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        assert not [line for line in lines if line.split()[9] in inodes]
    group.close()


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="no /proc")
def test_ranks_of_one_host_are_on_no_network(tmp_path):
    _run(_listen, ("memory", tmp_path, 0))
    assert not list(tmp_path.iterdir())  # nor is their file left


def _add(where, rank):
    _, folder, _ = where
    learner, meeting = join_in_memory(
        folder / "ranks", rank, 3, join_seconds=60, seconds=(30, 30), words="three"
    )
    for turn in range(5):
        long = torch.arange(300_000, dtype=torch.float64) * (rank + 1) + turn  # in three parts
        learner.sum_(long)
        assert torch.equal(long, torch.arange(300_000, dtype=torch.float64) * 6 + 3 * turn)
        assert meeting.gather([rank]) == [[0.0], [1.0], [2.0]]
    nothing = torch.zeros(0)
    learner.sum_(nothing)
    # in the order of ranks on all of them: (1e8 + 1) - 1e8 is 0 in these numbers, (1e8 - 1e8) + 1 is not
    order = torch.tensor([1e8, 1.0, -1e8])[rank]
    learner.sum_(order)
    assert order.item() == 0.0
    learner.close()
    meeting.close()


def test_three_ranks_of_one_host_add_up_long_tensors_in_the_order_of_ranks(tmp_path):
    _run(_add, ("memory", tmp_path, 0), expect=(0, 0, 0))


def _die_at_the_door(where, rank):
    if rank == 0:
        with pytest.raises(StreamError, match=r"could not join .*: one of them died while it came"):
            _join(where, rank)
        return
    file = where[1] / "ranks"
    while not file.is_socket():
        time.sleep(0.01)
    time.sleep(0.2)  # it listens a moment after it is there
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.connect(str(file))


def test_rank_that_dies_while_it_comes_is_an_error_that_names_the_group(tmp_path):
    _run(_die_at_the_door, ("memory", tmp_path, 0))


def _miss(where, rank):
    if rank == 1:
        return
    parallel.JOIN_SECONDS = 0.5
    with pytest.raises(StreamError, match="could not join the 2 trainers of policy 'main'"):
        _join(where, rank)


@pytest.mark.slow  # torch itself waits
def test_rank_that_never_comes_is_an_error(where):
    _run(_miss, where)


def test_trainers_that_meet_by_network_equal_one_on_the_same_blocks():
    assert max(learn_together([("127.0.0.1", []), ("127.0.0.1", [])])) < 1e-5


def test_interface_that_is_not_there_is_named_with_those_that_are():
    point = BetweenHosts("tcp://127.0.0.1:1", "127.0.0.1", interface="nosuch")
    with pytest.raises(ConfigError, match=r"nosuch: the host 127.0.0.1 has none.*, it has .*lo"):
        TrainerGroup(point, rank=0, size=2, policy="main", life=1, device="cpu")
