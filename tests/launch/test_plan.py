from dataclasses import dataclass, replace

import msgspec
import pytest

from srl.algorithms.dqn import DQNConfig
from srl.algorithms.ppo import PPOConfig
from srl.api import check_devices, train
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import ConfigError
from srl.core.experiment import (
    ActorsConfig,
    BuffersConfig,
    EnvConfig,
    Experiment,
    PoliciesConfig,
    Route,
    StopConfig,
    TrainersConfig,
)
from srl.core.replay import ReplayConfig
from srl.core.routes import route_agents
from srl.core.telemetry import Telemetry
from srl.launch.graph.config import decode_experiment, encode_experiment
from srl.launch.graph.env_factory import make_env
from srl.launch.graph.explain import explain
from srl.launch.graph.hosts import arenas
from srl.launch.graph.plan import Plan, make_plan, probe_env, small_policies
from srl.learning.drawing import SLOTS
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
    assert set(arenas(plan)) == {"samples/main", "parameters/main"}


def test_plan_names_the_policy_without_torch_where_there_is_one():
    made = experiment()
    plan = make_plan(made)
    assert plan.routes[0].small[0].maker == "srl.nets.small:SmallActorCritic"
    sent = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
    assert sent.routes[0].small == plan.routes[0].small
    remembering = replace(made.algorithm, memory="gru", chunk=8)
    assert make_plan(replace(made, algorithm=remembering)).routes[0].small == ()
    assert make_plan(replace(made, acting="torch")).routes[0].small == ()


def test_algorithm_need_not_offer_a_policy_without_torch():
    class Own:  # everything of PPO but that
        def __getattr__(self, name):
            if name == "small_policy":
                raise AttributeError(name)
            return getattr(PPOConfig(), name)

    agent = AgentSpec((Observation("obs", (4,), "float32"),), Discrete(2))
    assert small_policies([PPOConfig()], [agent])
    assert small_policies([Own()], [agent]) == ()
    assert small_policies([PPOConfig(), Own()], [agent, agent]) == ()


def test_plan_counts_blocks_lanes_and_slots():
    plan = make_plan(experiment(inference="shm", policies=PoliciesConfig(count=2)))
    route = plan.routes[0]
    assert (route.lanes, route.batch) == (2, 4)  # 64 rows / (8 x 2)
    # 2 groups being filled + (1 + 1) x 4 blocks / 2 actors waiting + 1
    assert route.slots == 2 + 4 + 1
    assert arenas(plan)["samples/main"] == block_arena_bytes(route.layout(), 2, 7)
    assert [w.name for w in plan.of_kind("policy")] == ["policy-0", "policy-1"]
    assert {"replies/main/0", "replies/main/1"} <= set(arenas(plan))


def test_plan_of_two_routes_gives_each_policy_its_own_streams():
    env = EnvConfig(name="toy/identity", options='{"agents": 3}')
    routes = (Route(agents="agent_0", policy="one"), Route(agents="*", policy="two"))
    algorithm = PPOConfig(rollout=8, batch_size=128, minibatch_size=32)
    plan = make_plan(experiment(env=env, routes=routes, algorithm=algorithm, launcher="inline"))
    assert [r.agents for r in plan.routes] == [(0,), (1, 2)]
    assert [r.lanes for r in plan.routes] == [2, 4]
    assert [w.name for w in plan.of_kind("trainer")] == ["trainer-one-0", "trainer-two-0"]


def test_plan_of_two_ranks_shares_the_batch_and_the_actors():
    trainers = TrainersConfig(count=2)
    plan = make_plan(experiment(trainers=trainers))
    assert [w.name for w in plan.of_kind("trainer")] == ["trainer-0", "trainer-1"]
    assert [w.index for w in plan.of_kind("trainer")] == [0, 1]
    assert plan.writers() == ["trainer-0"]
    assert plan.num_ranks == 2
    route = plan.routes[0]
    assert arenas(plan)["samples/main"] == block_arena_bytes(route.layout(), 2, 7, 2)
    assert plan.ranks_of("trainer-1") == ["trainer-0", "trainer-1"]
    assert plan.ranks_of("actor-1") == ["actor-1"]
    assert [plan.device(w) for w in plan.of_kind("trainer")] == ["cpu", "cpu"]


def replaying(buffers: int, launcher: str = "local", **options):
    replay = ReplayConfig(kind="prioritised", capacity=800, batch=16, warm_up=64, **options)
    algorithm = DQNConfig(rollout=8, replay=replay)
    return make_plan(
        experiment(algorithm=algorithm, buffers=BuffersConfig(count=buffers), launcher=launcher)
    )


def test_buffers_stand_where_trainers_did_and_save_what_they_keep():
    plan = replaying(2)
    assert [w.name for w in plan.takers("main")] == ["buffer-0", "buffer-1"]
    assert plan.writers() == ["trainer-0", "buffer-0", "buffer-1"]
    assert replaying(2, saved=False).writers() == ["trainer-0"]
    route, found = plan.routes[0], arenas(plan)
    assert found["samples/main"] == block_arena_bytes(route.layout(), 2, route.slots, 2)
    assert route.draw_layout().lanes == 8  # half of 16 windows
    assert found["draws/main"] == block_arena_bytes(route.draw_layout(), 2, SLOTS, 1)
    assert found["priorities/main"] == block_arena_bytes(route.priority_layout(), 2, SLOTS, 2)
    assert "buffers main -- draws/main (shm) --> trainer main" in plan.edges()
    assert plan.replay_contract()[0] == ["rows and priorities of replay buffers"]


def test_without_buffers_trainers_keep_what_is_replayed():
    for plan in (replaying(0), replaying(2, launcher="inline")):
        assert [w.name for w in plan.takers("main")] == ["trainer-0"]
        assert "draws/main" not in arenas(plan)
        assert plan.routes[0].replay.shards == 1


def test_ranks_on_gpus_have_one_each():
    plan = make_plan(experiment(trainers=TrainersConfig(count=2, device="cuda")))
    assert [plan.device(w) for w in plan.of_kind("trainer")] == ["cuda:0", "cuda:1"]
    alone = make_plan(experiment(trainers=TrainersConfig(device="cuda")))
    assert alone.device(alone.worker("trainer-0")) == "cuda"
    with pytest.raises(ConfigError, match=r"cannot share cuda:1: use --trainers\.device cuda"):
        TrainersConfig(count=2, device="cuda:1")


def test_ranks_without_enough_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    check_devices(experiment(trainers=TrainersConfig(device="cuda")))
    with pytest.raises(ConfigError, match="needs a GPU each, and torch finds 1 here"):
        check_devices(experiment(trainers=TrainersConfig(count=2, device="cuda")))


@pytest.mark.parametrize(
    "device", ["gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:01", "cuda1"]
)
@pytest.mark.parametrize("launcher", ["local", "ray"])
def test_a_device_that_is_none_is_refused(device, launcher):
    trainers = TrainersConfig(device=device)
    with pytest.raises(ConfigError, match=r"trainers\.device must be cpu, cuda or cuda:N, got"):
        check_devices(experiment(trainers=trainers, launcher=launcher))


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    check_devices(experiment(trainers=TrainersConfig(device="cuda:1")))
    with pytest.raises(ConfigError, match=r"trainers\.device is 'cuda:2', but .* here is cuda:1"):
        check_devices(experiment(trainers=TrainersConfig(device="cuda:2")))
    with pytest.raises(ConfigError, match=r"policies\.device is 'cuda:7'"):
        check_devices(experiment(policies=PoliciesConfig(device="cuda:7")))


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_launcher_ray_deals_gpus_out_itself(device):
    with pytest.raises(ConfigError, match=r"launcher ray .*: use --trainers\.device cuda$"):
        check_devices(experiment(trainers=TrainersConfig(device=device), launcher="ray"))
    check_devices(experiment(trainers=TrainersConfig(device="cuda"), launcher="ray"))


def test_ranks_in_one_process_are_one():
    actors = ActorsConfig(count=3, envs=4, groups=2)
    plan = make_plan(experiment(trainers=TrainersConfig(count=2), actors=actors, launcher="inline"))
    assert [w.name for w in plan.of_kind("trainer")] == ["trainer-0"]
    assert plan.num_ranks == 1


def test_actors_must_be_a_multiple_of_the_ranks():
    actors = ActorsConfig(count=3, envs=4, groups=2)
    with pytest.raises(ConfigError, match=r"actors.count \(3\).*use --actors.count 4"):
        experiment(trainers=TrainersConfig(count=2), actors=actors)


def test_batch_must_be_a_multiple_of_the_ranks():
    trainers, actors = TrainersConfig(count=3), ActorsConfig(count=3, envs=4, groups=2)
    with pytest.raises(ConfigError, match=r"4 blocks of 16 rows.*batch-size 48 or 96"):
        make_plan(experiment(trainers=trainers, actors=actors))


@pytest.mark.parametrize(
    ("launcher", "words"),
    [("local", "2 x trainer  on cpu, 2 to share every batch"), ("inline", "one does what 2 would")],
)
def test_explain_says_how_many_trainers_share_a_batch(launcher, words):
    assert words in explain(experiment(trainers=TrainersConfig(count=2), launcher=launcher))


def test_plan_refuses_a_batch_that_is_not_a_number_of_blocks():
    algorithm = PPOConfig(rollout=8, batch_size=72, minibatch_size=32)
    with pytest.raises(ConfigError, match="for example 64 or 80"):
        make_plan(experiment(algorithm=algorithm))


@dataclass(frozen=True)
class Loose(PPOConfig):
    """Of an own algorithm: its options are not checked by itself."""

    def __post_init__(self):
        pass


@dataclass(frozen=True)
class NoRecords(Loose):
    def records(self, agent):
        return super().records(agent).outputs


@dataclass(frozen=True)
class NoPolicy(Loose):
    def make_policy(self, agent, *, seed, compute):
        return object()


@dataclass(frozen=True)
class NoAlgorithm:
    rollout: int = 8


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (Loose(rollout=0, batch_size=64), "algorithm.rollout must be at least 1, got 0"),
        (Loose(rollout=-1, batch_size=64), "algorithm.rollout must be at least 1, got -1"),
        (Loose(rollout=8, batch_size=0), "algorithm.batch-size must be at least 1, got 0"),
        (
            NoAlgorithm(),
            "is not an algorithm: it has no batch_size, make_learner, make_policy, rec",
        ),
        (NoRecords(rollout=8, batch_size=64), r"records\(\) of NoRecords must return Records"),
        (NoPolicy(rollout=8, batch_size=64), "object is not a policy: it has no act, act_greedy"),
    ],
    ids=["no rows", "fewer", "no batch", "no algorithm", "no records", "no policy"],
)
def test_plan_refuses_an_own_algorithm_that_is_none(algorithm, words):
    with pytest.raises(ConfigError, match=words):
        make_plan(experiment(algorithm=algorithm))


def test_plan_refuses_a_function_for_drawn_windows_that_is_not_there():
    replay = ReplayConfig(relabel="srl.core.replay:nothing")
    with pytest.raises(ConfigError, match=r"'srl\.core\.replay' has no 'nothing'"):
        make_plan(experiment(algorithm=DQNConfig(replay=replay)))


def test_replay_may_grow_in_the_process_that_has_it():
    algorithm = DQNConfig()
    sizes = [
        make_plan(experiment(algorithm=algorithm, **options)).replay_growth
        for options in (
            {"launcher": "inline"},
            {"launcher": "local"},
            {"launcher": "local", "buffers": BuffersConfig(count=2)},
        )
    ]
    (whole, alone, shared) = sizes
    assert list(whole) == ["controller"]
    assert alone == {"trainer": whole["controller"]}
    assert shared["buffer"] == pytest.approx(whole["controller"] / 2, rel=0.05)


def test_algorithm_that_is_no_dataclass_is_refused_in_words():
    for algorithm in (object(), DQNConfig):
        with pytest.raises(ConfigError, match="it must be an object of a dataclass whose fields"):
            train(experiment(algorithm=algorithm))


def test_plan_refuses_what_is_no_function_for_drawn_windows():
    replay = ReplayConfig(relabel="math:pi")
    with pytest.raises(ConfigError, match="'math:pi' is a float: it must be a function"):
        make_plan(experiment(algorithm=DQNConfig(replay=replay)))


def test_plan_refuses_fewer_rows_in_order_than_are_drawn_together():
    replay = ReplayConfig(kind="fifo", capacity=512, batch=512, warm_up=0)
    with pytest.raises(ConfigError, match=r"leaves room for \d+ windows, and 512 different ones"):
        make_plan(experiment(algorithm=DQNConfig(replay=replay)))


def test_plan_says_where_nothing_will_be_learned():
    algorithm = DQNConfig(replay=ReplayConfig(warm_up=5000))
    made = make_plan(experiment(algorithm=algorithm, stop=StopConfig(env_steps=4999)))
    assert "hardly anything will be learned: stop.env-steps 4999 are over" in made.warnings()[0]
    made = make_plan(experiment(algorithm=algorithm, stop=StopConfig(env_steps=5000)))
    assert not made.warnings()


def test_plan_refuses_an_arena_that_is_too_small_with_the_sum():
    with pytest.raises(ConfigError, match=r"2 actors x \(2 groups being filled \+ 4 waiting"):
        make_plan(experiment(arena_megabytes=0.001))


def test_plan_refuses_a_block_that_is_too_large():
    env = EnvConfig(name="toy/pixels", options='{"size": 512}')
    algorithm = PPOConfig(rollout=128, batch_size=256, minibatch_size=32)
    with pytest.raises(ConfigError, match=r"more --actors.groups"):
        make_plan(experiment(env=env, algorithm=algorithm))


def test_experiment_survives_its_json_form():
    import json

    before = experiment(seed=7, routes=(Route(agents="a*", policy="p"),), launcher="inline")
    after = decode_experiment(json.loads(json.dumps(encode_experiment(before))))
    assert after == before


def test_probe_heeds_masks():
    env = make_env(EnvConfig(name="toy/masked"), 0, num_envs=16, first_env=0, sets=((0,),))
    routes = route_agents((Route(),), env.spec.agents)
    probe_env(env, routes, Telemetry())  # the env raises where a mask is not heeded
