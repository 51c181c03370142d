from dataclasses import replace

import pytest

from srl.algorithms.ppo import PPOConfig
from srl.core.errors import ConfigError
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, PoliciesConfig, Route
from srl.core.routes import route_agents
from srl.launch.config import decode_experiment, encode_experiment
from srl.launch.env_factory import make_env
from srl.launch.plan import make_plan, probe_env
from srl.transport.blocks import block_arena_bytes


def experiment(**changes):
    base = Experiment(
        name="toy",
        env=EnvConfig(name="toy/identity"),
        algorithm=PPOConfig(rollout=8, batch_size=64, minibatch_size=32),
        actors=ActorsConfig(count=2, envs=4, groups=2),
    )
    return replace(base, **changes)


def test_plan_of_inline_inference_has_no_policy_workers():
    plan = make_plan(experiment())
    assert [w.name for w in plan.workers] == ["trainer-0", "actor-0", "actor-1"]
    assert set(plan.arenas()) == {"samples/main", "parameters/main"}


def test_plan_counts_blocks_lanes_and_slots():
    plan = make_plan(experiment(inference="shm", policies=PoliciesConfig(count=2)))
    route = plan.routes[0]
    assert (route.lanes, route.batch) == (2, 4)  # 64 rows / (8 x 2)
    # 2 groups being filled + (1 + 1) x 4 blocks / 2 actors waiting + 1
    assert route.slots == 2 + 4 + 1
    assert plan.arenas()["samples/main"] == block_arena_bytes(route.layout(), 2, 7)
    assert [w.name for w in plan.of_kind("policy")] == ["policy-0", "policy-1"]
    assert {"replies/main/0", "replies/main/1"} <= set(plan.arenas())


def test_plan_of_two_routes_gives_each_policy_its_own_streams():
    env = EnvConfig(name="toy/identity", options='{"agents": 3}')
    routes = (Route(agents="agent_0", policy="one"), Route(agents="*", policy="two"))
    algorithm = PPOConfig(rollout=8, batch_size=128, minibatch_size=32)
    plan = make_plan(experiment(env=env, routes=routes, algorithm=algorithm, launcher="inline"))
    assert [r.agents for r in plan.routes] == [(0,), (1, 2)]
    assert [r.lanes for r in plan.routes] == [2, 4]
    assert [w.name for w in plan.of_kind("trainer")] == ["trainer-one-0", "trainer-two-0"]


def test_plan_refuses_a_batch_that_is_not_a_number_of_blocks():
    algorithm = PPOConfig(rollout=8, batch_size=72, minibatch_size=32)
    with pytest.raises(ConfigError, match="for example 64 or 80"):
        make_plan(experiment(algorithm=algorithm))


def test_plan_refuses_an_arena_that_is_too_small_with_the_sum():
    with pytest.raises(ConfigError, match=r"2 actors x \(2 groups being filled \+ 4 waiting"):
        make_plan(experiment(arena_megabytes=0.001))


def test_plan_refuses_a_block_that_is_too_large():
    env = EnvConfig(name="toy/pixels", options='{"size": 512}')
    algorithm = PPOConfig(rollout=128, batch_size=256, minibatch_size=32)
    with pytest.raises(ConfigError, match=r"more --actors.groups"):
        make_plan(experiment(env=env, algorithm=algorithm))


def test_plan_refuses_what_the_host_cannot_hold(monkeypatch):
    monkeypatch.setattr("srl.launch.plan.available_memory", lambda: 1000)
    with pytest.raises(ConfigError, match="MB of shared memory"):
        make_plan(experiment())


def test_experiment_survives_its_json_form():
    import json

    before = experiment(seed=7, routes=(Route(agents="a*", policy="p"),), launcher="inline")
    after = decode_experiment(json.loads(json.dumps(encode_experiment(before))))
    assert after == before


def test_probe_heeds_masks():
    env = make_env(EnvConfig(name="toy/masked"), 0, num_envs=16, first_env=0, sets=((0,),))
    routes = route_agents((Route(),), env.spec.agents)
    probe_env(env, routes)  # the env raises where a mask is not heeded
