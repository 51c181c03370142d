import itertools
import time
from dataclasses import replace

import pytest

from srl.api import find_experiment
from srl.core.errors import ConfigError
from srl.tools.planning.calibrate import one_of_each, plan_of
from srl.tools.planning.cluster import on_cluster, read_cluster, this_host
from srl.tools.planning.command import command_of
from srl.tools.planning.model import Costs, predict
from srl.tools.planning.recommend import recommend

FACTS = {
    "env": 10.0,
    "call": 100.0,
    "inference": ((1, 50.0), (64, 2.0)),
    "update": 20.0,
    "update_cpu": 20.0,
    "ask": 30.0,
    "serve": 60.0,
    "far_ask": 60.0,
    "far_serve": 90.0,
    "answer_seconds": 1e-4,
    "far_answer_seconds": 2e-4,
}
COSTS = Costs(**FACTS)
LARGE = "[[nodes]]\ncount = 60\ncores = 256\n[[nodes]]\ncount = 4\ncores = 128\ngpus = 8\n"


def cluster_of(tmp_path, text):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return read_cluster(path)


def recommended(words, cluster, costs=COSTS, say=lambda _: None):
    experiment = find_experiment("cartpole", words.split())
    return recommend(experiment, cluster, plan_of(one_of_each(experiment)), costs, say)


def rate_of(experiment, cluster, one, costs):
    return predict(on_cluster(experiment, cluster, one), costs).env_steps_per_second


def typed(candidate, words=""):
    return [w for n, v in candidate.options.items() for w in (f"--{n}", v)] + words.split()


@pytest.mark.parametrize(
    ("words", "costs"),
    [
        ("", COSTS),
        pytest.param(
            "",
            Costs(**{**FACTS, "update": 0.5, "update_cpu": 0.5, "env": 1000.0}),
            marks=pytest.mark.slow,
        ),
        ("--trainers.device cuda", Costs(**{**FACTS, "update_cpu": 2.0, "env": 1000.0})),
    ],
    ids=["learning", "sampling", "gpus"],
)
def test_a_large_cluster_takes_seconds_and_says_how_far_it_is(tmp_path, words, costs):
    cluster, said, start = cluster_of(tmp_path, LARGE), [], time.process_time()
    found = recommended(words, cluster, costs, said.append)
    assert time.process_time() - start < 15.0
    assert said[0] == "comparing settings ..."
    assert "100 so far" in said[1]
    for candidate in found:  # it can be typed, and is what was predicted
        experiment = find_experiment("cartpole", typed(candidate, words))
        one = plan_of(one_of_each(experiment))
        assert experiment.launcher == "ray"
        assert rate_of(experiment, cluster, one, costs) == pytest.approx(candidate.rate)


@pytest.mark.slow
def test_nothing_of_a_grid_is_much_faster(tmp_path):
    cluster = cluster_of(tmp_path, "[[nodes]]\ncount = 4\ncores = 8\n")
    best = recommended("", cluster)[0]
    rates = []
    numbers = itertools.product((1, 2, 4), (4, 8, 16, 24), (1, 2, 4), ("inline", "shm"), (1, 3))
    for ranks, actors, groups, inference, policies in numbers:
        batch = max(4, ranks, actors * groups // 2) * 512
        words = f"--trainers.count {ranks} --actors.count {actors} --actors.groups {groups}"
        words += f" --actors.envs {16 * groups} --inference {inference} --launcher ray"
        words += f" --algorithm.batch-size {batch}"
        if inference == "shm":
            words += f" --policies.count {policies}"
        experiment = find_experiment("cartpole", words.split())
        try:
            rates.append(rate_of(experiment, cluster, plan_of(one_of_each(experiment)), COSTS))
        except ConfigError:
            continue
    assert len(rates) > 50
    assert best.rate > 0.95 * max(rates)


def test_of_settings_as_fast_the_one_with_fewest_cores_comes_first(tmp_path):
    # a trainer that learns 50,000/s on its own, and does not gain by others
    slow = Costs(**{**FACTS, "exchange_seconds": 10.0})
    found = recommended("--actors.count 64", cluster_of(tmp_path, LARGE), slow)
    assert found[0].cores <= 4
    assert "algorithm.batch-size" not in found[0].options
    present = next(c for c in found if c.is_present)
    assert (present.cores, present.options) == (65, {"launcher": "ray"})
    assert found[0].rate > 0.97 * present.rate


def test_the_present_setting_where_none_is_better():
    two = replace(this_host(), machines={"here": 2.0})
    slow = Costs(**{**FACTS, "update": 500.0, "exchange_seconds": 10.0})
    found = recommended("", two, slow)
    assert found[0].is_present
    assert found[0].options == {}
    found = recommended("--launcher inline", two, slow)
    assert {c.options["launcher"] for c in found} == {"local"}


def test_the_best_with_the_batch_as_it_is_is_shown_too(tmp_path):
    fast = Costs(**{**FACTS, "update": 0.5, "update_cpu": 0.5, "env": 1000.0})
    found = recommended("", cluster_of(tmp_path, "[[nodes]]\ncount = 4\ncores = 16\n"), fast)
    assert "algorithm.batch-size" in found[0].options
    others = [c for c in found if "algorithm.batch-size" not in c.options]
    assert max(c.rate for c in others) > next(c for c in found if c.is_present).rate


def test_a_command_replaces_what_was_typed():
    words = ["--actors.count=4", "--seed", "3", "--actors.envs", "8", "--ray.actors", "a b", "c"]
    options = {"launcher": "ray", "actors.count": "8", "actors.envs": "16"}
    assert command_of("cartpole", words, options) == (
        "srl train cartpole --launcher ray --actors.count 8 --actors.envs 16 --seed 3 "
        "--ray.actors 'a b' c"
    )
    assert command_of(
        "cartpole", ["--algorithm.batch_size", "5"], {"algorithm.batch-size": "6"}
    ) == ("srl train cartpole --algorithm.batch-size 6")
