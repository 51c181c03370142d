"""What a step costs: measured by real parts, added up by hand."""

import json

import numpy as np
import pytest

from srl import cli
from srl.api import find_experiment
from srl.core.block import Layout
from srl.core.spec import Field, Spec
from srl.tools.bench.alone import measure, resized
from srl.tools.bench.clock import Clock, Spent, cost, repeat
from srl.tools.bench.cost import ideal

TINY = "--actors.envs 4 --actors.groups 2 --algorithm.rollout 8 --algorithm.batch-size 32"
TINY += " --algorithm.minibatch-size 16 --algorithm.epochs 2 --algorithm.hidden 8"


def test_a_cost_is_a_median_and_spinning_is_none():
    samples = [Spent(2.0, 1.0), Spent(3.0, 5.0), Spent(4.0, 4.0)]
    found = cost(samples, 1e6)
    assert found["core_us"] == 3.0  # of 1, min(5, 3) and 4
    assert (found["lowest_us"], found["highest_us"]) == (1.0, 4.0)
    assert (found["cpu_us"], found["wall_us"]) == (4.0, 3.0)
    assert cost(samples, 1e6, threads=2)["core_us"] == 4.0  # of 1, 5 and 4


def test_the_first_call_is_a_warm_up_unless_it_is_all():
    calls = []
    assert len(repeat(lambda: calls.append(0), 60.0, most=3)) == 3
    assert len(calls) == 4
    assert len(repeat(lambda: calls.append(0), 0.0)) == 1
    assert len(calls) == 5
    assert len(repeat(lambda: calls.append(0), 0.0, warms_up=True)) == 1
    assert len(calls) == 7


def test_a_clock_counts_and_hands_over_once():
    clock = Clock()
    with clock.time("a"):
        sum(range(1000))
    with clock.time("a"):
        pass
    clock.counters["n"] += 3
    spent, counted = clock.take()
    assert counted == {"n": 3, "calls.a": 2}
    assert spent["a"].wall > 0
    assert clock.take() == ({}, {})


def test_lanes_are_repeated_or_left_out_with_their_envs():
    spec = Spec((Field("id", (), "int64", "head"), Field("x", (), "int64")))
    spec += Spec((Field("team", (), "int64", "env"),))
    layout = Layout(spec, 2, 4, 2)
    batch = {
        "id": np.arange(4),
        "x": np.stack([np.arange(4), np.arange(4) + 10]),
        "team": np.array([[0, 1], [2, 3]]),
    }
    more = resized(batch, layout, 6)
    assert more["id"].tolist() == [0, 1, 2, 3, 0, 1]
    assert more["x"].tolist() == [[0, 1, 2, 3, 0, 1], [10, 11, 12, 13, 10, 11]]
    assert more["team"].tolist() == [[0, 1, 0], [2, 3, 2]]
    assert resized(batch, layout, 2)["team"].tolist() == [[0], [2]]


def costs(**core_us):
    parts = {
        name: {"core_us": us, "wall_us": us / 2, "core_us_a_row": us / 2}  # two agents an env
        for name, us in core_us.items()
    }
    table = [
        {"batch": 64, "core_us": 3.0, "wall_us": 1.5},
        {"batch": 1024, "core_us": 1.0, "wall_us": 0.5},
    ]
    main = {"lanes_an_env": 2, "served": 64, "inference": table, "update": []}
    return {"parts": parts, "policies": {"main": main}}


def test_the_ideal_is_all_cores_busy_with_nothing_else():
    experiment = find_experiment("toy/identity")
    found = ideal(costs(env=5.0, inference=10.0, stage=1.0, update=4.0, send=99.0), experiment, 2)
    assert found["env_steps_per_second"] == pytest.approx(2e6 / 20)
    assert found["limit"] == "cpu"


def test_policy_workers_answer_larger_batches():
    experiment = find_experiment("toy/identity", ["--inference", "shm"])
    found = ideal(costs(env=5.0, inference=10.0, stage=1.0, update=4.0), experiment, 2)
    assert found["core_us_an_env_step"]["inference"] == 6.0  # 3 a row, two rows an env step
    assert found["env_steps_per_second"] == pytest.approx(2e6 / 16)


def test_on_a_gpu_the_slowest_resource_counts():
    words = ["--inference", "shm", "--policies.device", "cuda", "--trainers.device", "cuda"]
    experiment = find_experiment("toy/identity", words)
    parts = costs(env=5.0, inference=10.0, stage=1.0, update=4.0)
    found = ideal(parts, experiment, 2)
    assert found["resources"] == {
        "cpu": pytest.approx(2e6 / 6),
        "cuda:0": pytest.approx(1e6 / (3 + 2)),
    }
    assert found["limit"] == "cuda:0"
    assert ideal(parts, experiment, 1)["limit"] == "cpu"


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("toy/identity", []),
        ("toy/match", []),  # agents
        ("toy/recall", ["--algorithm.memory", "gru", "--algorithm.chunk", "4"]),
        ("toy/identity", ["--inference", "shm", "--actors.count", "2"]),
    ],
)
def test_every_part_is_measured(env, words):
    wide = ["--algorithm.batch-size", "64"] if env == "toy/match" else []
    experiment = find_experiment(env, [*TINY.split(), *wide, *words])
    found = measure(experiment, 0.1)
    assert set(found["parts"]) == {"env", "inference", "send", "stage", "update", "publish", "loop"}
    for part in ("env", "inference", "stage", "update"):
        assert found["parts"][part]["core_us"] > 0
    main = next(iter(found["policies"].values()))
    agents = 2 if env == "toy/match" else 1
    sizes = [e["batch"] for e in main["inference"]]
    assert {2 * agents, 1024} <= set(sizes)
    assert sizes == sorted(sizes)
    if "--actors.count" in words:
        assert 4 in sizes
    assert [e["minibatch"] for e in main["update"]] == [16, 64, 256, 1024, 4096]
    assert all(e["core_us"] > 0 for e in main["inference"] + main["update"])


def test_the_command_writes_what_it_prints(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = ["bench", "cost", "toy/identity", *TINY.split(), "--seconds", "0.1", "--json", "c.json"]
    assert cli.main(words) == 0
    out = capfd.readouterr().out
    assert "ideal:" in out
    assert "update of main, by minibatch" in out
    result = json.loads((tmp_path / "c.json").read_text())
    assert result["name"] == "toy/identity"
    assert result["host"]["cores"] == result["ideal"]["cores"]
    assert f"{result['ideal']['env_steps_per_second']:,.0f} env steps/s" in out
    assert (tmp_path / "c.svg").read_text().startswith("<svg")


def test_replay_is_refused_in_words(capfd):
    assert cli.main(["bench", "cost", "cartpole-dqn", "--seconds", "0.1"]) == 2
    assert "cartpole-dqn learns from replay" in capfd.readouterr().err
