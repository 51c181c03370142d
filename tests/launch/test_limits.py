"""What a run needs against what the host has, before anything is started."""

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from srl import cli
from srl.algorithms.ppo import PPOConfig
from srl.core.errors import ConfigError
from srl.core.experiment import (
    ActorsConfig,
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    Experiment,
    PoliciesConfig,
    TrainersConfig,
)
from srl.launch.graph.hosts import arenas
from srl.launch.graph.plan import make_plan
from srl.launch.host import limits
from srl.launch.host.limits import MB, Host, Need, check, needs, read_host

FAULTY = f"{Path(__file__).parents[1] / 'bad_envs.py'}:experiment"
OUT = Path("out")
NEED = Need(
    shared=100 * MB,
    workers=300 * MB,
    addresses=1000 * MB,
    descriptors=60,
    processes=20,
    disk=2 * MB,
    much_disk=30 * MB,
)
ROOMY = Host(
    memory=500 * MB,
    addresses=1000 * MB,
    descriptors=60,
    processes=20,
    disk=30 * MB,
    files=1000,
)


def experiment(**options) -> Experiment[PPOConfig]:
    return Experiment(
        **{
            "name": "test",
            "env": EnvConfig(name="toy/counter"),
            "algorithm": PPOConfig(rollout=8, batch_size=64, minibatch_size=32, hidden=(8,)),
            "actors": ActorsConfig(count=2, envs=8, groups=2),
            "checkpoint": CheckpointConfig(keep=3),
            "evaluation": EvaluationConfig(keep=10),
            **options,
        }
    )


def need_of(**options) -> Need:
    wanted = experiment(**options)
    return needs(make_plan(wanted), wanted)


def weights_of(wanted) -> int:
    route = make_plan(wanted).routes[0]
    return sum(field.nbytes for field in route.weights_spec())


def test_what_fits_is_not_mentioned():
    assert check(NEED, ROOMY, "words", OUT) == []
    assert check(NEED, Host(), "words", OUT) == []  # a host that says nothing


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (replace(ROOMY, memory=399 * MB), "only 399 MB are available: use fewer"),
        (
            replace(ROOMY, memory=399 * MB, memory_limit=512 * MB),
            r"the control group, a container's or a job's, may have 512 MB",
        ),
        (replace(ROOMY, addresses=999 * MB), "'ulimit -v unlimited'"),
        (replace(ROOMY, descriptors=59), "may open 59: raise the limit .'ulimit -n 60'"),
        (replace(ROOMY, processes=19), "starts about 20 processes and threads, and only 19 more"),
        (replace(ROOMY, disk=2 * MB - 1), "out has 2.00 MB left, and one checkpoint needs 2.00"),
        (replace(ROOMY, files=63), "can hold only 63 more files"),
    ],
)
def test_what_cannot_work_is_refused(host, words):
    with pytest.raises(ConfigError, match=words):
        check(NEED, host, "words", OUT)


def test_memory_that_is_missing_is_added_up_in_words():
    with pytest.raises(ConfigError) as error:
        check(NEED, replace(ROOMY, memory=10 * MB), "2 actors x 50 MB", OUT)
    said = "about 400 MB of memory: 100 MB shared (2 actors x 50 MB) and at least 300 MB for the"
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (replace(ROOMY, memory=499 * MB), "memory is tight: this run needs about 400 MB"),
        (replace(ROOMY, disk=29 * MB), "may write 30 MB: make room"),
    ],
)
def test_what_is_tight_is_a_note(host, words):
    (note,) = check(NEED, host, "words", OUT)
    assert words in note


def test_needs_of_a_local_run():
    wanted = experiment()
    plan, weights = make_plan(wanted), weights_of(wanted)
    need = needs(plan, wanted)
    assert need.shared == sum(arenas(plan).values())
    batch = plan.routes[0].batch * plan.routes[0].layout().nbytes
    learner = 4 * weights + 2 * batch
    assert need.workers == (25 + 150 + 2 * 10) * MB + learner  # agent, trainer, two actors
    assert need.addresses == need.shared + 900 * MB
    assert need.descriptors == 32 + 2 + 3  # two arenas, three workers
    assert need.processes == 1 + 3 * (2 + 1)
    assert need.disk == 3 * weights + MB
    assert need.much_disk == 5 * 3 * weights + 12 * weights + 20 * MB
    assert needs(plan, wanted, is_new=False).much_disk == 2 * 3 * weights + 20 * MB


def test_needs_of_an_inline_run():
    wanted = experiment(launcher="inline")
    need, weights = need_of(launcher="inline"), weights_of(wanted)
    assert need.workers < MB  # all in this process
    assert (need.descriptors, need.processes, need.addresses) == (0, 0, 0)
    assert need.disk == 3 * weights + need.shared + MB  # with all blocks


def test_workers_need_more_with_torch_and_with_a_gpu():
    less = need_of(inference="shm").workers
    torch = need_of(inference="shm", acting="torch").workers
    assert torch - less == 140 * MB  # the policy worker's
    cuda = need_of(policies=PoliciesConfig(device="cuda"), inference="shm").workers
    assert cuda - torch == 400 * MB
    actors = need_of(acting="torch").workers
    assert actors - need_of().workers == 2 * 140 * MB  # each computes actions itself
    ranks = need_of(trainers=TrainersConfig(count=2)).workers
    assert ranks - need_of().workers == 150 * MB


def test_more_actors_need_more_descriptors_than_the_hard_limit_of_most_hosts():
    assert need_of(actors=ActorsConfig(count=1200, envs=1)).descriptors > 1024


def test_host_is_read(tmp_path):
    host = read_host(tmp_path / "not" / "there" / "yet")
    assert host.memory is not None
    assert 1 << 20 < host.memory < 1 << 45
    assert host.disk is not None
    assert host.disk > 0
    assert host.descriptors == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_swap_counts_as_memory(tmp_path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 100 kB\nMemAvailable: 7 kB\nSwapFree:   3 kB\n")
    assert limits.available_memory(file) == 10 * 1024
    assert limits.available_memory(tmp_path / "nowhere") is None


def test_less_of_host_and_control_group_is_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "available_memory", lambda: 5000)
    monkeypatch.setattr(limits.cgroup, "memory_limit", lambda: 9000)
    monkeypatch.setattr(limits.cgroup, "memory_left", lambda: 4000)
    host = read_host(tmp_path)
    assert (host.memory, host.memory_limit) == (4000, 9000)
    monkeypatch.setattr(limits.cgroup, "memory_left", lambda: 6000)
    host = read_host(tmp_path)
    assert (host.memory, host.memory_limit) == (5000, None)


def test_threads_of_a_user_are_counted(tmp_path):
    for pid, user, threads in ((1, 0, 3), (2, 77, 4), (3, 77, 1)):
        (tmp_path / str(pid)).mkdir()
        text = f"Name:\tx\nUid:\t{user}\t0\t0\t0\nThreads:\t{threads}\n"
        (tmp_path / str(pid) / "status").write_text(text)
    (tmp_path / "4").mkdir()  # it ended meanwhile
    assert limits._threads_of(77, tmp_path) == 5


def refused(capfd, *words: object) -> str:
    assert cli.main(["train", FAULTY, *map(str, words)]) == 2
    said = capfd.readouterr().err
    assert said.startswith("srl: ")
    assert said.count("\n") == 1
    return said


def test_run_that_the_host_cannot_hold_is_refused(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(limits, "available_memory", lambda: 50 * MB)
    said = refused(capfd, "--out", tmp_path / "run")
    assert "1 actors x (1 groups being filled" in said
    assert "only 50 MB are available" in said
    assert not (tmp_path / "run").exists()


def test_run_is_refused_where_no_checkpoint_fits(capfd, small_disk):
    disk = small_disk("size=512k")
    said = refused(capfd, "--out", disk / "run")
    assert "0.52 MB left, and one checkpoint needs 1.0" in said
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "resume"])
def test_folder_that_is_read_only_is_refused(capfd, small_disk, command):
    disk = small_disk("size=8m")
    out = disk / "run"
    if command == "resume":
        words = ["--launcher", "inline", "--stop.env-steps", "64", "--evaluation.episodes", "0"]
        assert cli.main(["train", FAULTY, "--out", str(out), *words]) == 0
        capfd.readouterr()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    words = ["train", FAULTY, "--out", str(out)] if command == "train" else ["resume", str(out)]
    assert cli.main(words) == 2
    said = capfd.readouterr().err
    assert "cannot be written: [Errno 30] Read-only file system" in said
    assert said.count("\n") == 1


def limited(number: int, values: tuple[int, int], program: str) -> subprocess.CompletedProcess[str]:
    """A program of Python in a process with a limit."""
    limit = f"import resource; resource.setrlimit({number}, {values}); {program}"
    words = [sys.executable, "-c", limit]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_limit_of_descriptors_is_refused_with_the_number_to_set(tmp_path):
    run = f"from srl import cli; raise SystemExit(cli.main({['train', FAULTY, '--out', str(tmp_path / 'run')]}))"
    done = limited(resource.RLIMIT_NOFILE, (30, 30), run)
    assert done.returncode == 2, done.stderr
    assert "opens about 36 files and sockets, and may open 30" in done.stderr
    assert "'ulimit -n 36'" in done.stderr
    assert not (tmp_path / "run").exists()


def test_soft_limit_of_descriptors_is_raised():
    program = (
        "from srl.launch.host.limits import raise_descriptors; raise_descriptors(); "
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = limited(resource.RLIMIT_NOFILE, (40, 80), program)
    assert done.stdout == "(80, 80)\n", done.stderr


def test_temporary_folder_that_cannot_be_written_is_refused(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("srl.launch.host.socket_folder.socket_place", lambda: "/proc/nowhere")
    said = refused(capfd, "--out", tmp_path / "run")
    assert "no folder for sockets can be made" in said
    assert "set TMPDIR" in said


def test_what_trainers_add_up_in_counts():
    one, two = need_of(), need_of(trainers=TrainersConfig(count=2))
    # two places of 1 MiB, a channel to learn and one to meet, for each of two
    plans = [make_plan(experiment(trainers=TrainersConfig(count=n))) for n in (1, 2)]
    others = [sum(arenas(plan).values()) for plan in plans]
    assert (one.shared - others[0], two.shared - others[1]) == (0, 2 * 2 * 2 * 2**20)
    # 16 ranks: a pair of sockets a channel for every two, and the first holds all of them
    actors = ActorsConfig(count=16, envs=8, groups=2)
    algorithm = PPOConfig(rollout=8, batch_size=512, minibatch_size=512, hidden=(8,))
    many = need_of(trainers=TrainersConfig(count=16), actors=actors, algorithm=algorithm)
    assert many.descriptors >= 2 * 2 * (16 * 15 // 2)
