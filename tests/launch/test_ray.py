"""The Ray launcher, on real Ray clusters whose nodes are all on this host."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import srl
from srl.api import find_experiment
from srl.core.errors import ConfigError
from srl.launch import ray as ray_launcher
from srl.launch.graph.placing import Node, Place
from srl.launch.graph.plan import make_plan
from srl.launch.ray import Knock, RayCluster, RayRecruiter, RayStarter

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("ray"),
]


def nothing_is_set_aside(cluster: Any) -> bool:
    import ray

    ray.init(cluster.address, log_to_driver=False)
    try:
        deadline = time.monotonic() + 20
        while ray.available_resources().get("CPU") != ray.cluster_resources().get("CPU"):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True
    finally:
        ray.shutdown()


def test_run_learns_on_the_nodes_it_is_given(
    cluster: Any, auditing: str, tmp_path: Path, assert_ledger_adds_up: Any
) -> None:
    run = srl.train(
        auditing,
        launcher="ray",
        ray__address=cluster.address,
        ray__actors=("far",),
        actors__count=2,
        inference="shm",
        policies__count=2,
        seed=1,
        out=str(tmp_path / "run"),
    )
    assert run.summary["status"] == "completed"
    assert run.summary["eval_return"] >= 15
    assert run.summary["blocks_lost"] == 0
    assert_ledger_adds_up(run.summary)
    assert (run.folder / "logs" / "node-agent-1.log").exists()
    assert nothing_is_set_aside(cluster)


@pytest.mark.slow
def test_run_goes_on_when_a_node_dies(
    cluster: Any, auditing: str, tmp_path: Path, assert_ledger_adds_up: Any
) -> None:
    folder, runs = tmp_path / "run", []
    first = cluster.add_node(num_cpus=1, resources={"weak": 1})

    def train() -> None:
        options = {"ray__address": cluster.address, "ray__actors": ("weak",)}
        more = {"stop__env_steps": 200_000, "seed": 1, "out": str(folder)}
        runs.append(srl.train(auditing, launcher="ray", **options, **more))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    path, deadline = folder / "metrics.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and path.stat().st_size):
        time.sleep(0.05)
    cluster.add_node(num_cpus=1, resources={"weak": 1})
    cluster.remove_node(first, allow_graceful=False)
    thread.join(100)
    assert runs, "the run did not end"
    summary = runs[0].summary
    assert summary["status"] == "completed", summary["reason"]
    assert summary["worker_restarts"] >= 1
    assert_ledger_adds_up(summary)
    assert nothing_is_set_aside(cluster)


def test_sigterm_is_answered_by_the_run_and_not_by_ray(cluster: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, cluster.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr


TERMINATED = """
import os, signal, sys
from srl.launch.ray import RayCluster
signal.signal(signal.SIGTERM, lambda *_: print("heard"))
cluster = RayCluster({"address": sys.argv[1], "runtime_env": "{}"})
os.kill(os.getpid(), signal.SIGTERM)
cluster.close()
"""


def test_a_client_address_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="not as a client of it"):
        ray_launcher.check_ray("ray://127.0.0.1:10001")


def test_a_client_address_that_the_environment_names_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    with pytest.raises(ConfigError, match=r"ray://127.* \(RAY_ADDRESS\): a run connects as a"):
        ray_launcher.check_ray("auto")


def test_a_cluster_that_was_killed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert not ray_launcher._is_there_one("auto")
    left = tmp_path / "ray" / "ray_current_cluster"
    left.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as head:
        left.write_text(f"127.0.0.1:{head.getsockname()[1]}")

        def greet() -> None:
            peer, _ = head.accept()
            peer.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # HTTP/2's settings: none
            peer.recv(1000)
            peer.close()

        greeting = threading.Thread(target=greet)
        greeting.start()
        assert ray_launcher._is_there_one("auto")
        greeting.join(10)
    assert not ray_launcher._is_there_one("auto")


def bare_cluster(head: str) -> Any:
    """What knows of a cluster, without one."""
    made = RayCluster.__new__(RayCluster)
    made.ray = type("Ray", (), {"shutdown": staticmethod(lambda: None)})
    made._head, made._look_at, made._heard_at = head, 0.0, time.monotonic()
    made._is_lost = made._is_told = False
    return made


def test_a_head_that_is_gone_is_noticed_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_launcher, "_LOOK_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster = bare_cluster(f"127.0.0.1:{server.getsockname()[1]}")
        assert cluster.look() is None
    assert cluster.look() is None, "it may come again"
    cluster._heard_at -= 60
    reason = cluster.look()
    assert reason is not None
    assert "has not answered for 20 s" in reason
    assert "srl resume" in reason
    assert cluster.look() is None


def test_a_head_that_is_gone_is_said_also_after_a_call_that_took_too_long() -> None:
    cluster, asked = bare_cluster("127.0.0.1:1"), threading.Event()
    assert cluster.within(0.05, asked.wait, 60) is None
    cluster._heard_at -= 60
    assert "has not answered" in str(cluster.look())
    asked.set()


def test_a_ray_that_does_not_answer_is_asked_once() -> None:
    cluster, asked = bare_cluster(""), threading.Event()
    cluster.within(0.05, asked.wait, 60)
    assert cluster._is_lost
    calls: list[int] = []
    cluster.within(0.05, calls.append, 1)
    asked.set()
    assert calls == []


def test_a_knock_is_answered_where_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        knock = Knock("127.0.0.1", port)
        deadline = time.monotonic() + 5
        while not knock.is_answered and time.monotonic() < deadline:
            time.sleep(0.01)
        assert knock.is_answered
        assert knock.is_over
        knock.close()
    knock = Knock("127.0.0.1", port)
    assert not knock.is_over, "it may still be answered"
    knock._until -= 60
    assert not knock.is_answered
    assert knock.is_over
    knock.close()


class Nodes:
    """A cluster of nodes that a test has made up, on which groups are placed when it says so."""

    def __init__(self, *nodes: Node, **options: tuple[str, ...]) -> None:
        kinds = {"trainers": (), "policies": (), "actors": ()}
        self.cluster = bare_cluster("")
        self.cluster._options = {**kinds, "wait_seconds": 60.0, **options}
        self.cluster.is_local = False
        self.cluster._groups = []
        self.there = list(nodes)
        self.wishes: list[list[dict[str, float]]] = []
        self.is_met = False
        self.cluster.nodes = self.cluster.free_nodes = lambda: list(self.there)
        self.cluster.wish = self._wish
        self.cluster.give_back = self._give_back
        self.cluster.is_met = lambda *_: self.is_met

    def _wish(self, bundles: list[dict[str, float]]) -> Any:
        self.wishes.append(bundles)
        return bundles

    def _give_back(self, group: Any) -> None:
        if group is not None:
            self.wishes.remove(group)


HERE, FAR = Node("a", "10.0.0.1", 4.0), Node("b", "10.0.0.2", 4.0, marks=frozenset({"big"}))


def test_a_host_comes_again_where_it_was_only_if_that_node_answers() -> None:
    at = Place(HERE, ["actor-0"], cores=3.0)
    cluster = Nodes(HERE, FAR).cluster
    assert cluster.place_again(at, answers=True) == at
    assert cluster.place_again(at, answers=False) == replace(at, node=FAR)
    assert Nodes(HERE).cluster.place_again(at, answers=False) is None
    full = replace(FAR, cores=2.0)
    assert Nodes(HERE, full).cluster.place_again(at, answers=False) is None
    cluster = Nodes(HERE, FAR, actors=("10.0.0.1",)).cluster
    assert cluster.place_again(at, answers=False) is None
    assert Nodes(FAR).cluster.place_again(at, answers=True) == replace(at, node=FAR)


def plan_of(*options: str) -> Any:
    words = ["--launcher", "ray", "--inference", "inline", "--threads", "1", *options]
    return make_plan(find_experiment("cartpole", words))


def test_a_run_wishes_for_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made, said, looks = Nodes(HERE, actors=("10.0.0.9", "big")), [], []

    def sleep(_: float) -> None:
        looks.append([len(wish) for wish in made.wishes])
        if len(looks) == 3:
            made.there.append(FAR)  # the autoscaler has added it, and the wish has taken it
            made.there[1] = replace(FAR, cores=1.0)
            made.is_met = True
        if len(looks) == 4:
            made.there[1] = FAR

    monkeypatch.setattr(time, "sleep", sleep)
    plan = plan_of("--actors.count", "3", "--ray.actors", "10.0.0.9", "big")
    places = made.cluster.place(plan, lambda: False, said.append)
    assert [at.node for at in places] == [HERE, FAR]  # the trainer's, and that of the actors
    assert looks == [[4], [4], [4], []], "a trainer and three actors, until there is room"
    assert made.wishes == []
    assert len(said) == 1
    assert said[0].startswith("waiting for nodes, 60 s at most: ")
    wished = made.cluster.bundles(plan, ["trainer-0", "actor-0"])
    assert wished == [{"CPU": 1.0}, {"CPU": 1.0, "big": 0.0001}]


def test_nobody_can_add_a_node_by_its_address() -> None:
    made = Nodes(HERE, actors=("10.0.0.9", "a" * 56))
    assert made.cluster.bundles(plan_of("--actors.count", "2"), ["actor-0", "actor-1"]) == []


def test_a_run_that_waits_for_nodes_can_be_stopped() -> None:
    made = Nodes(HERE)
    with pytest.raises(SystemExit):
        made.cluster.place(plan_of("--actors.count", "8"), lambda: True, lambda _: None)


def test_nodes_that_will_never_do_are_not_waited_for() -> None:
    nodes = [replace(node, gpus=1.0) for node in (HERE, FAR)]
    words = ["--inference", "shm", "--trainers.device", "cuda", "--policies.device", "cuda"]
    apart = Nodes(*nodes, trainers=(HERE.address,), policies=(FAR.address,))
    with pytest.raises(
        ConfigError, match=r"with policies\.gpus 0 policy workers share a trainer's"
    ):
        apart.cluster.place(plan_of(*words), lambda: True, lambda _: None)
    marked = Nodes(*nodes, trainers=(HERE.address,), policies=("big",))
    with pytest.raises(SystemExit):  # a node with that mark may join
        marked.cluster.place(plan_of(*words), lambda: True, lambda _: None)


def test_actors_that_have_no_node_are_wished_for() -> None:
    made = Nodes(HERE)
    plan = plan_of("--actors.count", "2", "--actors.max", "4")
    recruiter = RayRecruiter(made.cluster, plan, [Place(HERE)])
    late = ["actor-2", "actor-3"]
    for _ in range(2):
        assert recruiter.recruit(late) == []
        assert made.wishes == [[{"CPU": 1.0}]] * 2, "each for itself"
    made.is_met = True  # and so nothing is free
    assert recruiter.recruit(late) == []
    assert made.wishes == []
    made.there[1:] = [replace(FAR, cores=1.0)]
    found = recruiter.recruit(late)
    assert [(starter.address, list(workers)) for starter, workers in found] == [
        ("10.0.0.2", ["actor-2"])
    ]
    for wishes in ([[{"CPU": 1.0}]], [], []):  # met again, by room that is not for this run
        assert recruiter.recruit(["actor-3"]) == []
        assert made.wishes == wishes


@pytest.mark.parametrize("taken", [3.0, 0.0], ids=["wishes are met", "not yet"])
def test_a_node_that_wishes_brought_is_used_whole(taken: float) -> None:
    made = Nodes(HERE)
    plan = plan_of("--actors.count", "1", "--actors.max", "4")
    recruiter = RayRecruiter(made.cluster, plan, [Place(HERE)])
    late = ["actor-1", "actor-2", "actor-3"]
    recruiter.recruit(late)
    assert len(made.wishes) == 3
    made.there.append(replace(FAR, cores=FAR.cores - taken))
    made.is_met = bool(taken)
    assert recruiter.recruit(late) == []
    assert made.wishes == []
    made.there[1] = FAR
    ((_, workers),) = recruiter.recruit(late)
    assert workers == late


def test_wishes_are_withdrawn_and_made_again() -> None:
    made = Nodes(HERE)
    plan = plan_of("--actors.count", "1", "--actors.max", "2")
    recruiter = RayRecruiter(made.cluster, plan, [Place(HERE)])
    recruiter.recruit(["actor-1"])
    assert made.wishes
    recruiter.withdraw()
    assert made.wishes == []
    recruiter.recruit(["actor-1"])
    assert made.wishes


def cluster_with(**util: Any) -> Any:
    """One whose Ray has these functions."""
    made = bare_cluster("")
    made.ray.util = SimpleNamespace(**util)
    made.ray.is_initialized = lambda: True
    made._groups, made._options = [], {"actors": ()}
    return made


def test_all_wishes_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"a": "PENDING", "b": "CREATED", "c": "PENDING"}
    cluster = cluster_with(placement_group_table=lambda wish: {"state": states[wish]})
    calls: list[Any] = []
    within = cluster.within
    monkeypatch.setattr(cluster, "within", lambda *words: calls.append(words) or within(*words))
    assert cluster.is_met("a", "b", "c")
    assert not cluster.is_met("a", "c")
    assert len(calls) == 2


def test_a_ray_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_launcher, "_ANSWER_SECONDS", 0.05)
    at, asked = Place(HERE, ["actor-0"], cores=3.0), threading.Event()
    for ask in (
        lambda cluster: cluster.wish([{"CPU": 1.0}]),
        lambda cluster: RayStarter(cluster, at).start(b""),
    ):
        cluster = cluster_with(placement_group=lambda *_, **__: asked.wait(60))
        assert ask(cluster) is None
        assert cluster._is_lost
        assert cluster._groups == []
        for answers in (False, True):
            assert cluster.place_again(at, answers=answers) is None
    asked.set()


def test_what_ray_cannot_start_is_told() -> None:
    cluster = cluster_with()  # of another version
    starter = RayStarter(cluster, Place(HERE, ["actor-0"], cores=3.0))
    assert starter.failure() is None
    starter.start(b"")
    assert "Ray could not start it on 10.0.0.1: " in str(starter.failure())
    assert "placement_group" in str(starter.failure())
    starter.close(0.0)


def starter_that_waits() -> tuple[Any, list[str]]:
    """Of a host whose node is not ready, and what was asked of Ray to end it."""
    asked: list[str] = []
    cluster = Nodes(HERE, FAR).cluster
    cluster.ray.is_initialized = lambda: True
    cluster.ray.wait = lambda started, timeout: ([], started)
    cluster.ray.get = lambda *_, **__: asked.append("get")
    cluster.ray.kill = lambda _: asked.append("kill")
    cluster.give_back = lambda _: asked.append("give back")
    close = SimpleNamespace(remote=lambda _: None)
    starter = RayStarter(cluster, Place(HERE, ["actor-0"], cores=3.0))
    starter._begin = lambda _: vars(starter).update(  # type: ignore[method-assign]
        _group="group", _started="started", _actor=SimpleNamespace(close=close)
    )
    starter.start(b"")
    asked.clear()
    return starter, asked


def test_a_host_whose_node_is_not_ready_is_closed_at_once() -> None:
    starter, asked = starter_that_waits()
    starter.close(10.0)
    assert asked == ["kill", "give back"]
    starter, asked = starter_that_waits()
    starter._cluster.ray.wait = lambda started, timeout: (started, [])
    starter.close(10.0)
    assert asked == ["get", "kill", "give back"], "what runs is ended in order"


def test_a_lost_host_goes_elsewhere_where_others_have_taken_its_room() -> None:
    starter, _ = starter_that_waits()
    state: list[str | None] = ["PENDING"]
    table = lambda _: {"state": state[0]} if state[0] else {}  # noqa: E731 - Ray raises, here KeyError
    starter._cluster.ray.util = SimpleNamespace(placement_group_table=table)
    knock = SimpleNamespace(is_over=True, is_answered=True, close=lambda: None)
    starter._cluster.knock = lambda _: knock
    starter.start(b"")  # it was lost: first its node has to answer
    assert starter.is_gone()
    starter.start(b"")
    assert starter.address == HERE.address
    assert not starter.is_gone(), "its room may come back"
    starter._is_full_after = 0.0
    state[0] = None
    assert not starter.is_gone(), "Ray does not say"
    state[0] = "PENDING"
    assert starter.is_gone(), "nobody has given it room"
    starter.start(b"")
    starter.start(b"")
    assert starter.address == FAR.address
    starter._is_full_after = 0.0
    state[0] = "CREATED"
    assert not starter.is_gone(), "it has room, and only takes its time"


@pytest.mark.slow
def test_node_that_joins_is_used(
    cluster: Any, auditing: str, tmp_path: Path, assert_ledger_adds_up: Any
) -> None:
    folder, runs = tmp_path / "run", []
    first = cluster.add_node(num_cpus=1, resources={"hall": 1})

    def train() -> None:
        options = {"ray__address": cluster.address, "ray__actors": ("hall",), "actors__max": 4}
        more = {"stop__env_steps": 400_000, "seed": 1, "out": str(folder)}
        runs.append(srl.train(auditing, launcher="ray", **options, **more))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    path, deadline = folder / "metrics.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and path.stat().st_size):
        time.sleep(0.05)
    assert not (folder / "logs" / "actor-1.json").exists()
    second = cluster.add_node(num_cpus=2, resources={"hall": 1})
    thread.join(110)
    assert runs, "the run did not end"
    summary = runs[0].summary
    assert summary["status"] == "completed", summary["reason"]
    assert summary["worker_restarts"] == 0
    assert_ledger_adds_up(summary)
    assert (folder / "logs" / "actor-1.json").exists()
    assert (folder / "logs" / "actor-2.json").exists()
    assert not (folder / "logs" / "actor-3.json").exists()  # for which there was no room
    cluster.remove_node(first)
    cluster.remove_node(second)
    assert nothing_is_set_aside(cluster)


def test_too_few_nodes_is_an_error_and_leaves_nothing(
    cluster: Any, auditing: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="there was room for"):
        srl.train(
            auditing,
            launcher="ray",
            ray__address=cluster.address,
            ray__wait_seconds=0,
            actors__count=64,
            algorithm__batch_size=1 << 16,
            out=str(tmp_path / "run"),
        )
    assert nothing_is_set_aside(cluster)
    assert not (tmp_path / "run").exists()  # so that the same command can be tried again


def test_unreachable_cluster_is_an_error_at_once(auditing: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(ConfigError, match=rf"no Ray cluster at --ray.address {address}"):
        srl.train(auditing, launcher="ray", ray__address=address, out=str(tmp_path / "run"))
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "did not greet within"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not the head of a Ray cluster"),
        (b"", "not the head of a Ray cluster"),
    ],
)
def test_what_listens_and_is_not_ray_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, reason: str
) -> None:
    monkeypatch.setattr(ray_launcher, "_REACH_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def serve() -> None:
            peer, _ = listener.accept()
            peer.recv(1000)
            if answer is not None:
                peer.sendall(answer)
                peer.close()
            else:
                peer.recv(1000)  # until it is given up

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(
            ConfigError, match=f"no Ray cluster at --ray.address {address}.*{reason}"
        ):
            ray_launcher.check_ray(address)
        thread.join(10)
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(
        ConfigError, match=f"no Ray cluster at --ray.address {address} .RAY_ADDRESS"
    ):
        ray_launcher.check_ray("auto")


def test_a_head_greets(cluster: Any) -> None:
    ray_launcher.check_ray(cluster.address)
    ray_launcher._reach(cluster.address)


def test_what_ray_does_not_know_is_not_shipped(cluster: Any, auditing: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Ray knows no 'workingdir': did you mean 'working_dir'"):
        srl.train(
            auditing,
            launcher="ray",
            ray__address=cluster.address,
            ray__runtime_env='{"workingdir": "."}',
            out=str(tmp_path / "run"),
        )


def test_what_ray_or_a_plugin_knows_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.runtime_env import RuntimeEnv

    def shipped(given: str) -> Any:
        made = bare_cluster("")
        made.ray.runtime_env = SimpleNamespace(RuntimeEnv=RuntimeEnv)
        made._options = {"runtime_env": given}
        return made._runtime_env()

    assert shipped('{"nsight": "default"}') == {"nsight": "default"}
    with pytest.raises(ConfigError, match="Ray knows no 'mine'; it knows conda, "):
        shipped('{"mine": 1}')
    monkeypatch.setenv("RAY_RUNTIME_ENV_PLUGINS", '[{"class": "my.Plugin"}]')
    assert shipped('{"mine": 1}') == {"mine": 1}


def test_token_is_for_its_owner_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "ray" / "token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    ray_launcher._make_token()
    first = file.read_text()
    assert len(first) == 64
    assert file.stat().st_mode & 0o777 == 0o600
    ray_launcher._make_token()
    assert file.read_text() == first


def test_missing_ray_is_an_error(
    auditing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'really-scalable-rl\[ray\]'"):
        srl.train(auditing, launcher="ray", out=str(tmp_path / "run"))
    assert "RAY_ADDRESS" not in os.environ


def test_cluster_of_its_own_needs_no_preparation(auditing: str, tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", Path(tempfile.mkdtemp(prefix="srlt-"))
    home.mkdir()
    words = [sys.executable, "-m", "srl.cli", "train", auditing, "--launcher", "ray"]
    words += ["--evaluation.episodes", "0", "--out", str(tmp_path / "run")]
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        words,
        env={**known, "HOME": str(home), "TMPDIR": str(temporary), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    left = [path.name for path in temporary.glob("ray/session*")]
    shutil.rmtree(temporary, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left == []
    token = home / ".ray" / "auth_token"  # it was not open to everybody
    assert token.stat().st_mode & 0o777 == 0o600
