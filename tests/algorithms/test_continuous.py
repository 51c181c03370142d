import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import srl
from srl.algorithms.sac import SACConfig
from srl.algorithms.td3 import TD3Config
from srl.core.algorithm import AlgorithmConfig, Learner, Policy
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Box, Discrete, Observation
from srl.core.errors import CheckpointError, ConfigError
from srl.core.experiment import StopConfig
from srl.core.names import load_object
from srl.core.replay import Prioritises, ReplayConfig, Replays
from srl.nets.continuous import Transitions
from srl.testing.batches import record_batches
from srl.testing.fakes import run_ranks
from srl.testing.numbers import check_numbers

NUMBERS = Path(__file__).with_name("numbers.json")
VECTOR = (Observation("obs", (4,), "float32"),)
AGENT = AgentSpec(VECTOR, Box((2,), (-2.0, 0.0), (2.0, 6.0)))
STEPS, MINIBATCH = 2, 16
REPLAY = ReplayConfig(capacity=100, batch=MINIBATCH, steps=STEPS, warm_up=0)
SMALL = {"replay": REPLAY, "hidden": (16,), "learning_rate": 1e-3}
DDPG = {"critics": 1, "policy_delay": 1, "target_noise": 0.0}
ALGORITHMS = {"sac": (SACConfig, {}), "td3": (TD3Config, {}), "ddpg": (TD3Config, DDPG)}
MAKING = threading.Lock()  # fresh weights come from the generator that all threads share
each_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config_of(name, **options):
    kind, own = ALGORITHMS[name]
    return kind(**(SMALL | own | options))


def make(name, agent=AGENT, seed=0, ranks=None, **options):
    with MAKING:
        config = config_of(name, **options)
        return config.make_learner(agent, seed=seed, compute=Compute(), ranks=ranks or Alone())


def windows(learner, count=1, seed=0, agent=AGENT, end=0.3):
    """Draws as a replay buffer would give them; of some rows there is nothing to learn."""
    lanes, rng = STEPS * MINIBATCH, np.random.default_rng(seed)
    batches = record_batches(
        learner.policy,
        agent,
        rollout=learner.config.n_step,
        lanes=lanes,
        blocks=count,
        seed=seed,
        reward=lambda obs, action: obs[:, 0] - action[:, 0] ** 2,
        end=end,
    )
    for batch in batches:
        batch["item"] = np.arange(lanes)
        batch["chance"] = rng.uniform(0.5, 2, lanes).astype(np.float32)
    return batches


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@each_algorithm
def test_algorithm_fits_the_contracts(name):
    config: AlgorithmConfig = config_of(name)
    learner: Learner = config.make_learner(AGENT, seed=0, compute=Compute(), ranks=Alone())
    policy: Policy = config.make_policy(AGENT, seed=0, compute=Compute())
    assert isinstance(config, Replays)
    assert isinstance(learner, Prioritises)
    assert policy.records.outputs.names == ("action",)
    assert_equal(learner.policy.weights(), policy.weights())
    parts = {weight.partition(".")[0] for weight in policy.weights()}
    assert parts == {"explores", "body", "head"}  # critics do not travel


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sac", {"temperature": 0.0}, "algorithm.temperature must be > 0, got 0.0"),
        ("sac", {"target_entropy": math.inf}, "algorithm.target_entropy must be a finite number"),
        ("sac", {"target_rate": 0.0}, "algorithm.target_rate must be > 0 and at most 1"),
        ("td3", {"policy_delay": 0}, "algorithm.policy_delay must be >= 1, got 0"),
        ("td3", {"target_noise": -1.0}, "algorithm.target_noise must be >= 0"),
        ("td3", {"critics": 0}, "algorithm.critics must be >= 1"),
    ],
)
def test_config_when_out_of_range_names_the_option(name, options, message):
    with pytest.raises(ConfigError, match=message):
        config_of(name, **options)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (AgentSpec(VECTOR, Discrete(3)), "Box.*are Discrete: use dqn"),
        (
            AgentSpec(VECTOR, Box((1,), (-math.inf,), (1.0,))),
            "finite bounds.*-inf.*wrapper, or use",
        ),
        (
            AgentSpec(VECTOR, Box((2,), (-1.0, 0.0), (1.0, 0.0))),
            "same lowest and highest value: leave it out",
        ),
        (AgentSpec((), AGENT.action), "observes something"),
        (AgentSpec((Observation("eye", (8, 8, 3), "uint8"),), AGENT.action), "'eye' is an image"),
    ],
)
def test_agents_that_do_not_fit_are_refused(agent, message):
    with pytest.raises(ConfigError, match=message):
        config_of("sac").records(agent)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@each_algorithm
def test_act_answers_its_spec_between_the_bounds(name, shape):
    size = math.prod(shape)
    agent = AgentSpec(VECTOR, Box(shape, (-1.0,) * size, (3.0,) * size))
    policy = make(name, agent).policy
    obs = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    obs.flags.writeable = False
    for explores in (1.0, 0.0):
        policy.load_weights(policy.weights() | {"explores": np.array(explores, np.float32)})
        for act in (policy.act, policy.act_greedy):
            (action,) = act({"obs": obs, "first": np.zeros(500, bool)}).values()
            assert action.shape == (500, *shape)
            assert action.dtype == np.float32
            assert action.min() >= -1
            assert action.max() <= 3


@each_algorithm
def test_actions_are_uniform_until_the_first_batch_is_learned(name):
    learner = make(name)
    inputs = {"obs": np.ones((4000, 4), np.float32), "first": np.zeros(4000, bool)}
    action = learner.policy.act(inputs)["action"]
    quarters = np.quantile(action, [0.25, 0.5, 0.75], axis=0)
    np.testing.assert_allclose(quarters[:, 0], [-1, 0, 1], atol=0.15)
    np.testing.assert_allclose(quarters[:, 1], [1.5, 3, 4.5], atol=0.25)
    learner.learn(windows(learner)[0], 0.0)
    actor = make(name, seed=5).policy
    actor.load_weights(learner.policy.weights())
    noise = torch.empty(4000, 2).normal_(generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = actor.network.to_env(actor.explore(torch.ones(4000, 4), noise))
    np.testing.assert_array_equal(actor.act(inputs)["action"], expected)
    follows = make(name, random_warm_up=False).policy
    assert float(follows.weights()["explores"]) == 0


@each_algorithm
def test_equal_seeds_learn_alike_and_leave_the_global_generator_alone(name):
    before = torch.get_rng_state()
    results = []
    for seed in (1, 1, 2):
        learner = make(name, seed=seed)
        for batch in windows(learner, 2):
            metrics = learner.learn(batch, 0.5)
        results.append(learner.save())
        assert np.isfinite(list(metrics.values())).all()
    assert_equal(results[0], results[1])
    assert not np.array_equal(results[0]["weights/head.weight"], results[2]["weights/head.weight"])
    assert torch.equal(before, torch.get_rng_state())


def transition(learner, **values):
    """One transition from state 1 to 2, of reward 1, discount 0.9 and action 0.5."""
    numbers = {
        "features": [[1.0]],
        "action": [[0.5]],
        "returns": [1.0],
        "discounts": [0.9],
        "next_features": [[2.0]],
        "share": [1.0],
        "weight": [1.0],
        "noise": [[0.0]],
        "next_noise": [[0.0]],
    }
    return Transitions(**{k: torch.tensor(v) for k, v in (numbers | values).items()})


def by_hand(name, outputs, **options):
    """Critics s + 2a + 0.5 and s + 2a + 1, and a policy that puts out the same for every state."""
    agent = AgentSpec((Observation("obs", (1,), "float32"),), Box((1,), (-1.0,), (1.0,)))
    learner = make(name, agent, hidden=(), **options)
    networks = learner.critics, learner.target_critics.network
    actors = [learner.policy.network]
    if name != "sac":
        actors.append(learner.target_actor.network)
    with torch.no_grad():
        for critics in networks:
            critics.value_weight.copy_(
                torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]]])[: len(critics.value_bias)]
            )
            critics.value_bias.copy_(torch.tensor([[0.5], [1.0]])[: len(critics.value_bias)])
        for actor in actors:
            actor.head.weight.zero_()
            actor.head.bias.copy_(torch.tensor(outputs))
    return learner


NO_RATE = torch.tensor(0.0)


def test_sac_losses_by_hand():
    """A standard normal at u = 0: a = 0 and log π = -log √(2π); with α = 0.5."""
    learner = by_hand("sac", [0.0, 0.0], temperature=0.5)
    log_prob = -0.918939
    rows = transition(learner, weight=[0.25])
    target = 1 + 0.9 * (2 + 0.5 - 0.5 * log_prob)
    assert float(learner.target(rows, torch.tensor(0.5))) == pytest.approx(target, abs=1e-5)
    measured, errors = learner.step(rows, NO_RATE, NO_RATE)
    first, second = (1 + 1 + 0.5) - target, (1 + 1 + 1) - target
    assert errors.flatten().tolist() == pytest.approx([first, second], abs=1e-5)
    found = dict(zip(learner.measured, measured.tolist(), strict=True))
    assert found["critic_loss"] == pytest.approx(0.25 * 0.5 * (first**2 + second**2), abs=1e-4)
    assert found["policy_loss"] == pytest.approx(0.5 * log_prob - 1.5, abs=1e-5)
    assert found["entropy"] == pytest.approx(-log_prob, abs=1e-5)
    assert found["value"] == pytest.approx(1.5)
    assert found["temperature"] == pytest.approx(0.5)
    # d/d log α of -log α (log π + H) with H = -1
    assert float(learner.temperature_adam.gradient) == pytest.approx(-(log_prob - 1), abs=1e-5)
    # of the policy: d/dmean (α log π - Q) = -α · 0 - 2 · (1 - tanh² 0), d/dlog std = -α at z = 0
    gradient = learner.policy.network.head.bias.grad
    assert gradient.tolist() == pytest.approx([-2.0, -0.5], abs=1e-5)


def test_temperature_falls_while_there_is_too_much_entropy():
    learner = by_hand("sac", [0.0, 0.0])
    learner.step(transition(learner), torch.tensor(0.1), NO_RATE)
    assert learner.temperature.log.item() == pytest.approx(-0.1, abs=1e-5)
    fixed = by_hand("sac", [0.0, 0.0], learn_temperature=False)
    fixed.step(transition(fixed), torch.tensor(0.1), NO_RATE)
    assert fixed.temperature.log.item() == 0


def test_td3_losses_by_hand():
    """μ = 0.5; noise of 0.2 x -10 is clipped to -0.5, that of 0.2 x 1 is not."""
    learner = by_hand("td3", [math.atanh(0.5)])
    rows = transition(learner, next_noise=[[-10.0]])  # 0.0, where noise of 2 would make it -1
    assert float(learner.target(rows)) == pytest.approx(1 + 0.9 * (2 + 0.5))
    rows = transition(learner, next_noise=[[1.0]])
    target = 1 + 0.9 * (2 + 1.4 + 0.5)
    assert float(learner.target(rows)) == pytest.approx(target)
    measured, errors = learner.step(rows, NO_RATE, NO_RATE)
    assert errors.flatten().tolist() == pytest.approx([2.5 - target, 3 - target], abs=1e-5)
    loss = 0.5 * ((2.5 - target) ** 2 + (3 - target) ** 2)
    assert measured.tolist() == pytest.approx([loss, 2.5], abs=1e-4)
    assert not learner.actor_adam.gradient.any()  # its turn comes with the second update
    learner.updates = 1
    learner.step(rows, NO_RATE, NO_RATE)
    gradient = learner.policy.network.head.bias.grad
    assert float(gradient) == pytest.approx(-2 * (1 - 0.25), abs=1e-5)


def test_ddpg_is_td3_with_one_critic_no_delay_and_no_smoothing():
    learner = by_hand("ddpg", [math.atanh(0.5)])
    rows = transition(learner, next_noise=[[10.0]])
    assert float(learner.target(rows)) == pytest.approx(1 + 0.9 * (2 + 1 + 0.5))
    _, errors = learner.step(rows, NO_RATE, NO_RATE)
    assert errors.shape == (1, 1)
    assert learner.actor_adam.gradient.any()


def test_targets_move_only_with_the_policy():
    learner = make("td3")
    (batch,) = windows(learner)
    (first, second), _ = learner._read(batch, 0.0)
    rate = torch.tensor(1e-2)
    networks = learner.target_critics.network, learner.target_actor.network, learner.policy.network

    def weights():
        return [torch.cat([p.flatten() for p in network.parameters()]) for network in networks]

    before = weights()
    learner.step(first, rate, rate)
    assert all(map(torch.equal, before, weights()))
    learner.updates += 1
    learner.step(second, rate, rate)
    assert not any(map(torch.equal, before, weights()))


def test_windows_are_read_as_transitions():
    """Two steps, ends of both kinds, and actions in -1..1; what is not known has no share."""
    learner = make("sac", n_step=2, discount=0.5)
    batch = windows(learner, 2, end=0.5)[1]
    minibatches, count = learner._read(batch, 0.0)
    # of neighbours, each minibatch has one
    rows = [torch.stack(parts, 1).flatten(0, 1) for parts in zip(*minibatches, strict=True)]
    rows = Transitions(*(x.numpy() for x in rows))
    known = batch["valid"][0]
    assert 0 < known.sum() < len(known)
    assert count == known.sum()
    shares = known.reshape(-1, STEPS) / known.reshape(-1, STEPS).sum(0)
    np.testing.assert_allclose(rows.share, shares.ravel(), rtol=1e-6)
    reward, ended = batch["reward"], batch["terminated"] | batch["truncated"]
    for lane in np.flatnonzero(known):
        last = 1 if ended[0, lane] else 2
        expected = reward[0, lane] + (0.5 * reward[1, lane] if last == 2 else 0)
        assert rows.returns[lane] == pytest.approx(expected, rel=1e-5)
        discount = 0.0 if batch["terminated"][last - 1, lane] else 0.5**last
        assert rows.discounts[lane] == discount
        np.testing.assert_array_equal(rows.features[lane], batch["obs"][0, lane])
        np.testing.assert_array_equal(rows.next_features[lane], batch["obs"][last, lane])
    scaled = (batch["action"][0] - [0, 3]) / [2, 3]
    np.testing.assert_allclose(rows.action, scaled, atol=1e-6)
    np.testing.assert_array_equal(rows.weight, rows.share)


@each_algorithm
def test_prioritised_windows_are_weighted_and_get_their_errors(name):
    learner = make(name, replay=replace(REPLAY, kind="prioritised", importance_exponent=0.5))
    (batch,) = windows(learner)
    (first, second), _ = learner._read(batch, 0.5)
    ratio = torch.stack([first.weight / first.share, second.weight / second.share], 1).flatten()
    expected = batch["chance"] ** -0.75
    np.testing.assert_allclose(ratio, expected / expected.max(), rtol=1e-5)
    twin = make(name, replay=learner.config.replay)
    twin.load(learner.save())
    learner.learn(batch, 0.5)
    assert learner.priorities.shape == (STEPS * MINIBATCH,)
    for number, rows in enumerate(twin._read(batch, 0.5)[0]):
        _, errors = twin.step(rows, torch.tensor(1e-3), torch.tensor(1e-3))
        twin.updates += 1
        expected = errors.abs().mean(0)
        np.testing.assert_allclose(learner.priorities[number::STEPS], expected, rtol=1e-5)


@each_algorithm
def test_saved_and_loaded_learner_goes_on_exactly(name):
    options = {"normalise_observations": True, "max_grad_norm": 0.5}
    whole = make(name, **options)
    batches = windows(whole, 5)
    for batch in batches[:3]:
        whole.learn(batch, 0.0)
    other = make(name, seed=9, **options)
    other.load(whole.save())
    for batch in batches[3:]:
        assert whole.learn(batch, 0.5) == other.learn(batch, 0.5)
    assert_equal(whole.save(), other.save())
    with pytest.raises(CheckpointError, match=r"body\.layers\.0\.weight"):
        make(name, hidden=(8,), **options).load(whole.save())


@each_algorithm
def test_two_ranks_learn_what_one_does(name):
    kind = {"replay": replace(REPLAY, kind="prioritised"), "normalise_observations": True}
    whole = make(name, **kind)
    batches = windows(whole, 20)
    whole.noise = lambda count: NOISE[:, :count]
    metrics = [whole.learn(batch, 0.5) for batch in batches]
    lanes = np.arange(STEPS * MINIBATCH).reshape(2, -1)  # of each minibatch a half each

    def learn(ranks):
        mine = lanes[ranks.rank]
        learner = make(name, ranks=ranks, **kind)
        learner.noise = lambda count: NOISE[:, mine]
        for batch, expected in zip(batches, metrics, strict=True):
            share = {k: x[mine] if x.ndim == 1 else x[:, mine] for k, x in batch.items()}
            share = {k: np.ascontiguousarray(x) for k, x in share.items()}
            found = learner.learn(share, 0.5)
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
        return learner.save()

    for found in run_ranks(2, learn):
        for key, expected in whole.save().items():
            if key not in ("shuffle", "generator"):
                np.testing.assert_allclose(found[key], expected, atol=1e-5, err_msg=key)


NOISE = torch.randn(2, STEPS * MINIBATCH, 2, generator=torch.Generator().manual_seed(4))


@each_algorithm
def test_two_hundred_updates_give_what_they_gave(name):
    """Guards the numbers of learning: `SRL_ACCEPT_NUMBERS=1` accepts others, and a commit says why."""
    learner = make(name, seed=3, hidden=(8,))
    batches = windows(learner, 10, seed=3)
    while learner.updates < 200:
        metrics = learner.learn(batches[learner.updates // STEPS % 10], 0.0)
    found = {k: metrics[k] for k in learner.measured}
    learned = ("weights/", "critics/", "target")
    found |= {key: array for key, array in learner.save().items() if key.startswith(learned)}
    check_numbers(NUMBERS, name, found)


def test_interrupted_run_is_resumed_exactly_with_its_priorities(tmp_path):
    """Uniform replay is among the experiments of `tests/test_resume.py`."""
    whole = load_object(f"{Path(__file__).parents[1] / 'launch' / 'toys.py'}:sac")()
    whole = replace(whole, stop=StopConfig(env_steps=160))
    # all of the importance from the beginning: the part has another end, and so other progress
    replay = replace(whole.algorithm.replay, kind="prioritised", importance_exponent=1.0)
    whole = replace(whole, algorithm=replace(whole.algorithm, replay=replay))
    options = {"launcher": "inline", "seed": 1, "evaluation__episodes": 0}
    expected = srl.train(whole, out=str(tmp_path / "whole"), **options)
    part = replace(whole, stop=StopConfig(env_steps=107))
    begun = srl.train(part, out=str(tmp_path / "part"), **options)
    resumed = srl.resume(begun.folder, stop__env_steps=160)
    arrays = load_object(f"{Path(__file__).parents[1] / 'runs.py'}:arrays")
    mine, theirs = arrays(expected.folder), arrays(resumed.folder)
    assert any("replay.table" in name for name in mine)
    assert [name for name in mine if mine[name] != theirs[name]] == []
