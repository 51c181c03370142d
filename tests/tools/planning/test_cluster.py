import pytest

from srl.api import find_experiment
from srl.core.errors import ConfigError
from srl.tools.planning.calibrate import one_of_each, plan_of
from srl.tools.planning.cluster import on_cluster, read_cluster, this_host
from srl.tools.planning.model import Crew, Team

CLUSTER = """
latency_ms = 0.5
gbit = 8
[[nodes]]
cores = 16
gpus = 2
marks = ["big"]
[[nodes]]
count = 2
cores = 8
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    path = tmp_path_factory.mktemp("cluster") / "cluster.toml"
    path.write_text(CLUSTER)
    return read_cluster(path)


def setup_of(words, cluster):
    experiment = find_experiment("cartpole", words.split())
    return on_cluster(experiment, cluster, plan_of(one_of_each(experiment)))


def test_what_a_file_says(cluster):
    assert [node.cores for node in cluster.nodes] == [16, 8, 8]
    assert (cluster.cores, cluster.gpus) == (32, 2)
    assert (cluster.latency_seconds, cluster.bandwidth) == (0.0005, 1e9)


def test_workers_are_where_the_launcher_would_place_them(cluster):
    words = "--inference shm --actors.count 16 --policies.count 2 --ray.trainers big"
    setup = setup_of(words + " --ray.actors node-1 node-2 --ray.policies big", cluster)
    assert setup.trainers == (Team(1, 0),)
    assert setup.servers == (Team(2, 0),)
    assert setup.crews == (
        Crew(8, 1, (0,), is_far=True, sends_far=1.0),
        Crew(8, 2, (0,), is_far=True, sends_far=1.0),
    )
    assert setup.machines == (16, 8, 8)


def test_actors_that_answer_themselves_beside_their_trainer():
    setup = setup_of(
        "--inference inline --actors.count 3 --actors.envs 12 --actors.groups 3", this_host()
    )
    assert setup.crews == (Crew(3, 0),)
    assert (setup.servers, setup.groups, setup.envs) == ((), 3, 4)


def test_hosts_that_share_a_machine(tmp_path):
    path = tmp_path / "one.toml"
    path.write_text('[machines]\nhere = 2\n[[nodes]]\ncount = 3\ncores = 8\nmachine = "here"\n')
    setup = setup_of("--inference inline --actors.count 20", read_cluster(path))
    assert setup.machines == (2,)
    assert set(setup.machine_of) == {0}
    assert len(setup.machine_of) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes = 3", "does not describe a cluster: Expected `array`"),
        ("[[nodes]]\ncores = 4\nspeed = 2", "unknown field `speed`"),
        ("x = [", "does not describe a cluster"),
        ('[[nodes]]\ncores = 4\nmachine = "a"', "says nothing about 'a'"),
        ("nodes = []", "at least one node"),
        ("gbit = 0\n[[nodes]]\ncores = 4", "gbit must be more than 0 and finite, got 0"),
        ("gbit = inf\n[[nodes]]\ncores = 4", "gbit must be more than 0 and finite, got inf"),
        ("latency_ms = inf\n[[nodes]]\ncores = 4", "latency_ms must be at least 0 and finite"),
        (
            "latency_ms = -1\n[[nodes]]\ncores = 4",
            "latency_ms must be at least 0 and finite, got -1",
        ),
        (
            "latency_ms = nan\n[[nodes]]\ncores = 4",
            "latency_ms must be at least 0 and finite, got nan",
        ),
        ("[[nodes]]\ncores = 4\n[[nodes]]\ncores = 0", r"nodes\[1\].cores must be more than 0"),
        ("[[nodes]]\ncores = inf", r"nodes\[0\].cores must be more than 0"),
        ("[[nodes]]\ncores = 4\ncount = 0", r"nodes\[0\].count must be at least 1, got 0"),
        (
            "[[nodes]]\ncores = 4\ngpus = -1",
            r"nodes\[0\].gpus must be at least 0 and finite, got -1",
        ),
        (
            "[machines]\na = -2\n[[nodes]]\ncores = 4",
            "machines.a must be more than 0 and finite, got -2",
        ),
    ],
)
def test_a_file_that_is_not_one(tmp_path, text, words):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_cluster(path)


def test_no_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_cluster(tmp_path / "none.toml")


def test_a_cluster_that_is_too_small(cluster):
    with pytest.raises(ConfigError, match="too little for 64 actor workers"):
        setup_of("--inference inline --actors.count 64", cluster)
