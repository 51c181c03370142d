import json

import msgspec
import pytest

import srl
from srl.api import find_experiment
from srl.cli import main
from srl.launch.graph.config import encode_experiment
from srl.tools.bench.window import Window
from srl.tools.planning.calibrate import (
    calibrate,
    costs_of,
    differing,
    expected_seconds,
    one_of_each,
    plan_of,
    read_costs,
    with_exchange,
    write_costs,
)
from srl.tools.planning.model import Costs, Crew, Setup, Team, predict

COSTS = Costs(env=10.0, call=100.0, inference=((1, 50.0), (64, 2.0)), update=20.0, update_cpu=20.0)


@pytest.fixture
def costs(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"costs": msgspec.to_builtins(COSTS), "measured": {}}))
    return path


def test_a_plan_for_this_host(costs, tmp_path, capsys):
    out = tmp_path / "plan.json"
    words = ["plan", "cartpole", "--costs", str(costs), "--json", str(out), "--actors.count", "2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    found = json.loads(out.read_text())["predicted"]
    assert f"predicted: {found['env_steps_per_second']:,.0f} env steps/s" in shown
    assert found["env_steps_per_second"] <= 50_000.1  # 20 us of the trainer
    assert f"bottleneck: {found['bottleneck']}" in shown


def test_what_is_recommended_fits_and_is_predicted_to_be_faster(costs, tmp_path, capsys):
    file, out = tmp_path / "cluster.toml", tmp_path / "plan.json"
    file.write_text("[[nodes]]\ncount = 4\ncores = 8\n")
    words = ["plan", "cartpole", "--cluster", str(file), "--costs", str(costs), "--recommend"]
    assert main([*words, "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    best = result["recommended"][0]
    rate = result["predicted"]["env_steps_per_second"]
    assert best["prediction"]["env_steps_per_second"] > 1.5 * rate
    assert int(best["options"]["trainers.count"]) > 1  # one trainer holds all others back
    again = [w for name, value in best["options"].items() for w in (f"--{name}", value)]
    assert main([*words[:-1], *again, "--json", str(out)]) == 0  # it is a setting that can be typed
    told = json.loads(out.read_text())["predicted"]["env_steps_per_second"]
    assert told == pytest.approx(best["prediction"]["env_steps_per_second"], rel=1e-6)
    shown = capsys.readouterr().out
    assert "recommended, and others" in shown
    assert best["command"] == " ".join(["srl train cartpole", *again])
    assert "--launcher ray" in best["command"]
    assert best["command"] in shown.splitlines()  # whole, however long


def test_a_finished_run_is_compared(costs, tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "plan.json"
    options = {"launcher": "inline", "stop__env_steps": 20_000, "stop__return": None}
    srl.train("cartpole", out=str(run), evaluation__episodes=0, **options)
    assert main(["plan", str(run), "--costs", str(costs), "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    rates = [result[k]["env_steps_per_second"] for k in ("predicted", "measured")]
    assert result["error"] == pytest.approx(rates[0] / rates[1] - 1, abs=1e-3)
    said = capsys.readouterr().out
    assert "predicted and measured" in said
    assert "this is for launcher local" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--costs", "FOLDER/none.toml", "--cluster", "FOLDER/none.toml"], "cannot be read"),
        (["--costs", "FOLDER/broken.json"], "was not written by srl plan"),
        (["--seconds", "0"], "--seconds must be more than 0"),
        (["--seconds", "nan"], "--seconds must be more than 0"),
        (
            ["--inference", "shm", "--actors.count", "4", "--actors.inline", "2"],
            "plan it with --actors.inline 0, and with --inference inline",
        ),
    ],
)
def test_bad_input(tmp_path, capsys, words, told):
    (tmp_path / "broken.json").write_text('{"costs": {"env": 1}}')
    changed = [word.replace("FOLDER", str(tmp_path)) for word in words]
    assert main(["plan", "cartpole", *changed]) == 2
    assert told in capsys.readouterr().err


@pytest.fixture
def unmeasurable(monkeypatch):
    """A host without GPUs, on which nothing may be measured."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def measure(*_):
        raise AssertionError("it is measured")

    monkeypatch.setattr("srl.tools.planning.command.calibrate", measure)


@pytest.mark.parametrize("kind", ["trainers", "policies"])
def test_costs_of_a_device_are_measured_where_it_is(tmp_path, capsys, unmeasurable, kind):
    file = tmp_path / "cluster.toml"
    file.write_text("[[nodes]]\ncores = 8\ngpus = 2\n")
    words = [f"--{kind}.device", "cuda", "--inference", "shm"]
    if kind == "policies":
        words += ["--policies.gpus", "1"]
    for more in ([], ["--cluster", str(file)], ["--costs", str(tmp_path / "none.json")]):
        assert main(["plan", "cartpole", *words, *more, "--again"]) == 2
        told = capsys.readouterr().err
        assert f"{kind}.device is 'cuda', but torch finds no CUDA device here" in told
        assert "--costs F.json keeps them there, and brings them here" in told


def test_costs_of_a_device_are_brought_here(costs, tmp_path, unmeasurable):
    file = tmp_path / "cluster.toml"
    file.write_text("[[nodes]]\ncores = 8\ngpus = 2\n")
    words = ["--trainers.device", "cuda", "--cluster", str(file), "--costs", str(costs)]
    assert main(["plan", "cartpole", *words]) == 0


def write_run(folder, words, summary):
    folder.mkdir()
    config = encode_experiment(find_experiment("cartpole", words))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = [{"time": {"seconds": i}, "consumed_env_steps": 100 * i} for i in range(10)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_with_a_device_that_is_not_here(tmp_path, capsys, unmeasurable):
    summary = {"status": "completed", "bottleneck": "learning: x", "staleness_mean": 1.0}
    write_run(tmp_path / "run", ["--trainers.device", "cuda"], summary)
    assert main(["plan", str(tmp_path / "run"), "--again"]) == 2
    assert "costs are measured on a host that has the device" in capsys.readouterr().err


def test_a_run_that_is_not_finished(tmp_path, capsys, unmeasurable):
    write_run(tmp_path / "run", [], {"status": "running", "pid": 1})
    assert main(["plan", str(tmp_path / "run")]) == 2
    assert "is not finished: it is running" in capsys.readouterr().err


def test_folders_that_are_no_runs(tmp_path, capsys):
    assert main(["plan", "runs/nosuch"]) == 2
    assert "there is no folder runs/nosuch" in capsys.readouterr().err
    assert main(["plan", str(tmp_path)]) == 2
    assert "is not a run folder: it has no config.json" in capsys.readouterr().err


def test_costs_of_what_was_measured():
    experiment = find_experiment("cartpole", ["--actors.envs", "16", "--actors.groups", "2"])
    parts = {
        name: {"cpu_us": us, "wall_us": us}
        for name, us in (("env", 8.0), ("send", 0.5), ("loop", 1.5), ("stage", 1), ("update", 20))
    }
    parts["publish"] = {"cpu_us": 0.5, "wall_us": 0.5}
    table = [{"batch": size, "cpu_us": us, "wall_us": us} for size, us in ((1, 30.0), (8, 2.0))]
    update = [{"minibatch": 64, "wall_us": 15.0}, {"minibatch": 256, "wall_us": 6.0}]
    policies = {"main": {"lanes_an_env": 1, "inference": table, "update": update}}

    def window(**cpu):
        return Window(10.0, 100_000, 50, {}, {k.replace("_", "-"): v for k, v in cpu.items()}, 0.0)

    windows = {
        # 12 us of the parts alone, 14.4 in the run: everything of an actor is 1.2 times as much
        "inside": window(actor_0=0.144, trainer_0=0.25, controller=0.004, node_agent=0.001),
        # 12 of its own; 8 envs ask once: 3 x 8; 2.4 of inference, and 5 for a share of a request
        "near": window(
            actor_0=0.15, policy_0=0.074, trainer_0=0.25, controller=0.004, node_agent=0.001
        ),
        "far": window(
            actor_0=0.21, policy_0=0.124, trainer_0=0.29, controller=0.004, node_agent=0.001
        ),
    }
    one = one_of_each(experiment)
    alone = {"parts": parts, "policies": policies}
    costs = costs_of(one, plan_of(one), alone, windows, {"near": 1e-4, "far": 2e-4})
    assert costs.env == pytest.approx(9.6)
    assert costs.call == pytest.approx(1.2 * 2.0 * 8)
    assert costs.update == costs.update_cpu == pytest.approx(25.0)
    assert costs.learn == ((64, 15.0), (256, 6.0))
    assert costs.inference == ((1, pytest.approx(36.0)), (8, pytest.approx(2.4)))
    assert costs.ask == pytest.approx(8 * (15 - 12))
    assert costs.serve == pytest.approx(8 * (7.4 - 2.4))
    assert costs.far_receive == costs.far_send == pytest.approx(4.0)
    assert costs.far_ask == pytest.approx(8 * (21 - 12 - 4))
    assert costs.far_serve == pytest.approx(8 * (12.4 - 2.4))
    assert costs.version == pytest.approx(0.005 * 10 / 50 * 1e6)
    assert (costs.answer_seconds, costs.far_answer_seconds) == (1e-4, 2e-4)
    assert (
        costs.request_bytes == 4 * 4 + 16
    )  # four numbers; an action, its log-probability, a value


QUIET = Window(seconds=6.0, env_steps=6000, versions=6, workers={}, cpu={}, elsewhere=0.0)


@pytest.mark.slow
def test_calibration_of_a_real_experiment(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SRL_CACHE", str(tmp_path))
    assert main(["plan", "cartpole", "--seconds", "15"]) == 0
    kept = next(tmp_path.glob("costs/*.json"))
    costs = read_costs(kept)
    assert costs.env > 1
    assert costs.update > 1
    assert 0 < costs.answer_seconds < 0.1
    assert 0 < costs.exchange_seconds < 1
    assert costs.exchange > 0
    assert main(["plan", "cartpole"]) == 0
    assert "costs as measured before" in capsys.readouterr().out


def test_costs_of_another_experiment_are_said_to_be(tmp_path, capsys):
    path, other = tmp_path / "costs.json", find_experiment("cartpole-dqn")
    write_costs(path, COSTS, {}, find_experiment("cartpole", ["--actors.count", "4"]))
    assert differing(path, find_experiment("cartpole")) == []
    assert main(["plan", "cartpole-dqn", "--costs", str(path)]) == 0
    assert "note: these are costs of another experiment; here it has" in capsys.readouterr().out
    assert any(
        word.startswith("algorithm.type srl.algorithms.dqn") for word in differing(path, other)
    )


def test_how_long_it_takes_is_said_with_what_starts():
    experiment = find_experiment("cartpole")
    assert expected_seconds(experiment, 60) == pytest.approx(90, rel=0.1)  # as it took
    assert expected_seconds(experiment, 15) == pytest.approx(44, rel=0.1)


def test_what_two_trainers_spend_on_each_other():
    facts = {
        "crews": (Crew(2, 0),),
        "servers": (),
        "trainers": (Team(2, 0),),
        "machines": (100.0,),
        "machine_of": (0,),
        "groups": 1,
        "envs": 8,
        "batch": 1000,
        "minibatches": 10,
    }
    setup = Setup(**facts, minibatch=100)
    costs = Costs(env=1.0, inference=((1, 0.1),), update=20.0, update_cpu=20.0)
    shares = {"wait_for_batch": 0.15, "wait_for_ranks": 0.05, "learn": 0.8}
    # 40,000 env steps/s, and 50,000 if both worked all the time: 20 us each, of which 10 (1.06 with what they
    # wait for the last) are updates; the rest is for each other, once in 100 env steps
    workers = {"trainer-0": shares, "trainer-1": shares, "actor-0": {"env": 1.0}}
    cores = {"trainer-0": 0.6, "trainer-1": 0.6, "actor-0": 1.0}
    found = with_exchange(costs, setup, Window(10.0, 400_000, 400, workers, cores, 0.0))
    assert found.exchange_seconds == pytest.approx((20e-6 - 10e-6 * 1.0577) * 100, rel=0.01)
    # 30 us of cores an env step: 10 more than the update; an update is every 100 of them, of both
    assert found.exchange == pytest.approx(10.0 * 100 / 2)
    assert predict(setup, found).limits["learning"] == pytest.approx(50_000, rel=0.001)


def test_an_experiment_is_calibrated_with_one_of_each_and_two_trainers(monkeypatch):
    seen = []
    module = "srl.tools.planning.calibrate"
    monkeypatch.setattr(f"{module}.measure_cost", lambda e, n, s: seen.append(e))
    monkeypatch.setattr(f"{module}.run_window", lambda e, **_: seen.append(e) or QUIET)
    monkeypatch.setattr(f"{module}.echo_seconds", lambda *, is_far: 0.0)
    monkeypatch.setattr(f"{module}.costs_of", lambda *_: COSTS)
    monkeypatch.setattr(f"{module}.with_exchange", lambda costs, *_: costs)
    experiment = find_experiment("cartpole", ["--actors.count", "4", "--trainers.count", "2"])
    said = []
    calibrate(experiment, 60.0, said.append)
    assert said[0].startswith("calibrating for about 81 s")  # 50 of them measure, processes start
    *single, pair = seen
    assert {(e.actors.count, e.trainers.count, e.launcher) for e in single} == {(1, 1, "local")}
    assert (pair.actors.count, pair.trainers.count, pair.inference) == (2, 2, "inline")
    assert [(e.inference, e.samples) for e in single[1:]] == [
        ("inline", "shm"),
        ("shm", "shm"),
        ("tcp", "tcp"),
    ]


def test_what_two_trainers_cannot_share_is_not_calibrated_for_two(monkeypatch):
    seen = []
    module = "srl.tools.planning.calibrate"
    monkeypatch.setattr(f"{module}.measure_cost", lambda e, n, s: None)
    monkeypatch.setattr(f"{module}.run_window", lambda e, **_: seen.append(e) or QUIET)
    monkeypatch.setattr(f"{module}.echo_seconds", lambda *, is_far: 0.0)
    monkeypatch.setattr(f"{module}.costs_of", lambda *_: COSTS)
    # a batch is one block
    words = ["--actors.envs", "8", "--actors.groups", "1", "--algorithm.batch-size", "256"]
    words += ["--algorithm.rollout", "32"]
    assert calibrate(find_experiment("cartpole", words), 60.0, lambda _: None)[0] == COSTS
    assert {e.trainers.count for e in seen} == {1}
