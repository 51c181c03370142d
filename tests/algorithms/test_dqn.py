"""DQN: its losses by hand, exact values of a small MDP, who explores how much, memory, ranks."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from srl.algorithms.dqn import DQNConfig, Minibatch
from srl.core.algorithm import Learner, Policy
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Box, Discrete, MultiDiscrete, Observation
from srl.core.errors import CheckpointError, ConfigError
from srl.core.replay import Prioritises, ReplayConfig, Replays
from srl.testing.batches import record_batches
from srl.testing.fakes import run_ranks
from srl.testing.numbers import check_numbers

VECTOR = Observation("obs", (4,), "float32")
PLAIN = AgentSpec((VECTOR,), Discrete(3))
MASKED = AgentSpec((VECTOR, Observation("action_mask", (3,), "bool")), Discrete(3))
B = 16
SMALL: dict[str, Any] = {"rollout": 8, "hidden": (16,), "n_step": 2, "huber": 100.0}
SMALL["replay"] = ReplayConfig(batch=B // 2, steps=2)
RAINBOW: dict[str, Any] = {"dueling": True, "distribution": "c51", "noisy": 0.5, "atoms": 11}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rainbow": RAINBOW | {"replay": ReplayConfig(kind="prioritised", batch=B // 2, steps=2)},
    "quantiles": {"distribution": "quantiles", "atoms": 8, "double": False},
    "recurrent": {"memory": "lstm", "memory_size": 8, "chunk": 4, "burn_in": 3, "rescale": True},
    "noisy": {"noisy": 0.5, "replay": ReplayConfig(batch=70)},  # more than learn with one noise
    "ladder": {"memory": "gru", "memory_size": 8, "chunk": 4, "ladder": 7.0},
}
NUMBERS = Path(__file__).with_name("numbers.json")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
MAKING = threading.Lock()  # fresh weights come from the generator that all threads share


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(agent=PLAIN, seed=0, ranks=None, device="cpu", **options):
    with MAKING:
        config, compute = DQNConfig(**(SMALL | options)), Compute(device)
        return config.make_learner(agent, seed=seed, compute=compute, ranks=ranks or Alone())


def play(learner, agent, **options):
    """Rows of 8 lanes that follow each other over blocks, by field, `[N, 8]`; of states each chunk's."""
    policy, rollout = learner.policy, learner.config.rollout
    batches = record_batches(policy, agent, rollout=rollout, lanes=8, blocks=4, **options)
    states = policy.records.state.names
    chunks = rollout // policy.records.chunk
    names = ("first", "action", "reward", "terminated", "truncated", "valid", "acting")
    names += agent.observation_names
    rows = {name: np.concatenate([b[name][:-1] for b in batches]) for name in names}
    return rows | {name: np.concatenate([b[name][:chunks] for b in batches]) for name in states}


def windows(learner, rows, seed=0, number=B):
    """So many windows of rows as a replay buffer draws them, and where they begin."""
    window, states = learner.config.window, learner.policy.records.state.names
    rng = np.random.default_rng(seed)
    last = len(rows["valid"]) - window.rows
    usable = (rows["valid"] & rows["acting"])[: last + 1]
    usable[np.arange(last + 1) % window.stride > 0] = False
    starts, lanes = np.argwhere(usable)[rng.choice(np.count_nonzero(usable), number)].T
    index = starts + np.arange(window.rows)[:, None]
    batch = {name: x[index, lanes] for name, x in rows.items() if name not in states}
    chunk = learner.policy.records.chunk
    batch |= {name: rows[name][(starts // chunk)[None], lanes] for name in states}
    batch |= {"item": np.arange(number), "step": np.zeros(number, np.int32)}
    batch["chance"] = (0.2 + rng.random(number)).astype(np.float32)
    return batch, starts, lanes


def draw(learner, agent=PLAIN, seed=0, **options):
    return windows(learner, play(learner, agent, seed=seed, **options), seed)[0]


def paid(obs, action):
    return (action == 1) + obs[:, 0]


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def read(learner, drawn, part=slice(None)):
    return learner._judged(learner._shown(drawn, part))


def copies(arrays):
    return {name: array.copy() for name, array in arrays.items()}


def weights_of(network):
    return torch.cat([weight.detach().flatten() for weight in network.parameters()])


def test_dqn_fits_the_contracts():
    config = DQNConfig()
    learner: Learner = config.make_learner(PLAIN, seed=0, compute=Compute(), ranks=Alone())
    policy: Policy = config.make_policy(PLAIN, seed=0, compute=Compute())
    assert isinstance(config, Replays)
    assert isinstance(learner, Prioritises)
    assert policy.records.outputs.names == ("action",)
    assert policy.records.state.names == ()
    assert_equal(learner.policy.weights(), policy.weights())


def test_windows_are_as_long_as_the_loss_needs():
    assert DQNConfig(n_step=3).window.rows == 4
    config = DQNConfig(n_step=3, memory="lstm", chunk=8, burn_in=4)
    assert (config.window.rows, config.window.stride, config.window.length) == (15, 8, 8)
    assert config.batch_size == 64 * 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_step": 0}, "algorithm.n_step must be >= 1, got 0"),
        ({"atoms": 1}, "algorithm.atoms must be >= 2"),
        ({"noisy": 0.0}, "algorithm.noisy must be > 0"),
        ({"distribution": "c52"}, "algorithm.distribution must be none or c51 or quantiles"),
        ({"encoder": "vgg"}, "algorithm.encoder must be nature or light or resnet or entities"),
        ({"value_range": (1.0, 1.0)}, "algorithm.value_range must be two numbers, rising"),
        ({"value_range": (0.0, float("inf"))}, "algorithm.value_range must be two numbers, rising"),
        ({"target_rate": 0.0}, "algorithm.target_rate must be > 0 and at most 1"),
        ({"burn_in": 2}, r"algorithm.burn_in must be 0 without algorithm.memory \(lstm or gru\)"),
        ({"chunk": 8}, "algorithm.chunk must be 16 without algorithm.memory"),
        ({"memory_size": 8}, "algorithm.memory_size must be 64 without algorithm.memory"),
        ({"priority_mix": 0.5}, "algorithm.priority_mix must be 0.9 without algorithm.memory"),
        ({"memory": "gru", "chunk": 5}, "algorithm.chunk must be a divisor of algorithm.rollout"),
        ({"rescale": True, "distribution": "c51"}, "rescale is of plain values"),
    ],
)
def test_config_when_out_of_range_names_the_option(options, message):
    with pytest.raises(ConfigError, match=message):
        DQNConfig(**options)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (AgentSpec((VECTOR,), Box((2,), (-1.0, -1.0), (1.0, 1.0))), r"are Box: use sac or td3"),
        (AgentSpec((VECTOR,), MultiDiscrete((2, 3))), r"are MultiDiscrete: use .* ppo"),
        (AgentSpec((), Discrete(2)), "observes something"),
    ],
)
def test_agents_that_do_not_fit_are_refused(agent, message):
    with pytest.raises(ConfigError, match=message):
        DQNConfig().records(agent)


def test_an_encoder_that_has_nothing_to_encode_is_refused():
    with pytest.raises(ConfigError, match="resnet needs an image"):
        DQNConfig(encoder="resnet").records(PLAIN)


def one_row(values, next_values, next_targets, returns, discount, mask=None):
    """A row whose action is 1, of two."""

    def of(numbers):
        return torch.tensor([numbers]).reshape(1, 2, -1)

    return Minibatch(
        values=of(values),
        action=torch.tensor([1]),
        returns=torch.tensor([returns]),
        discounts=torch.tensor([discount]),
        next_values=of(next_values),
        next_targets=of(next_targets),
        next_obs={} if mask is None else {"action_mask": torch.tensor([mask])},
        weight=torch.ones(1),
    )


TWO = AgentSpec((VECTOR,), Discrete(2))


@pytest.mark.parametrize(
    ("huber", "expected"),
    [(100.0, 0.5 * 7.5**2), (1.0, 7.5 - 0.5), (5.0, 5 * 7.5 - 0.5 * 25)],
)
def test_loss_by_hand(huber, expected):
    # the best action by the network is 0, whose target is 0.5 + 0.9 · 10 = 9.5
    rows = one_row([1.0, 2.0], [3.0, 1.0], [10.0, 20.0], 0.5, 0.9)
    loss, error = make(TWO, huber=huber).loss(rows)
    assert (loss.item(), error.item()) == pytest.approx((expected, 7.5))


def test_loss_respects_the_mask_of_the_next_observation():
    agent = AgentSpec((VECTOR, Observation("action_mask", (2,), "bool")), Discrete(2))
    rows = one_row([1.0, 2.0], [3.0, 1.0], [10.0, 20.0], 0.5, 0.9, mask=[False, True])
    _, error = make(agent).loss(rows)
    assert error.item() == pytest.approx(0.5 + 0.9 * 20 - 2)


def test_loss_of_atoms_by_hand():
    learner = make(TWO, distribution="c51", atoms=3, value_range=(-1.0, 1.0))
    chances = np.log([0.2, 0.3, 0.5]).tolist()
    # expectations 0 and 0.3: action 1 is best; moved atoms are 0, 0.5 and 1
    rows = one_row([[0.0] * 3, chances], [[0.0] * 3, chances], [[5.0, 0.0, 0.0], chances], 0.5, 0.5)
    loss, error = learner.loss(rows)
    by_hand = -(0.35 * np.log(0.3) + 0.65 * np.log(0.5))
    divergence = 0.35 * np.log(0.35 / 0.3) + 0.65 * np.log(0.65 / 0.5)
    assert (loss.item(), error.item()) == pytest.approx((by_hand, divergence))


def test_atoms_that_are_as_they_should_be_have_no_error():
    """However uncertain the return is: the cross-entropy is its entropy, and not 0."""
    learner = make(TWO, distribution="c51", atoms=3, value_range=(-1.0, 1.0))
    chances = np.log([0.2, 0.3, 0.5]).tolist()
    rows = one_row([[0.0] * 3, chances], [[0.0] * 3, chances], [[0.0] * 3, chances], 0.0, 1.0)
    loss, error = learner.loss(rows)
    assert loss.item() > 1
    assert error.item() == pytest.approx(0, abs=1e-6)
    assert error.item() >= 0


def test_loss_of_quantiles_by_hand():
    learner = make(TWO, distribution="quantiles", atoms=2)
    # targets 1 + 0.5 · 2 = 2, twice; errors 2 and -0.5 at the levels 1/4 and 3/4
    rows = one_row(
        [[9.0, 9.0], [0.0, 2.5]], [[1.0, 1.0], [0.0, 1.0]], [[2.0, 2.0], [7.0, 7.0]], 1.0, 0.5
    )
    loss, error = learner.loss(rows)
    assert loss.item() == pytest.approx(0.25 * 1.5 + 0.25 * 0.125)
    assert error.item() == pytest.approx(2 - 1.25)


def test_loss_of_rescaled_values_by_hand():
    # h(99) = 9.099 is brought back to 99; h(1 + 99) = sqrt(101) - 1 + 0.1
    rows = one_row([0.0, 9.0], [1.0, 0.0], [9.099, 0.0], 1.0, 1.0)
    _, error = make(TWO, rescale=True).loss(rows)
    assert error.item() == pytest.approx(np.sqrt(101) - 0.9 - 9, abs=1e-4)


def test_gradient_is_of_the_taken_action_only():
    rows = one_row([1.0, 2.0], [3.0, 1.0], [10.0, 20.0], 0.5, 0.9)
    values = rows.values.clone().requires_grad_()
    loss, _ = make(TWO).loss(rows._replace(values=values))
    loss.sum().backward()
    assert values.grad is not None
    assert values.grad.flatten().tolist() == pytest.approx([0.0, -7.5])


def test_without_double_the_target_network_chooses():
    for double in (True, False):
        learner = make(double=double)
        for weight in learner.target.parameters():
            weight.data.mul_(-1.0)
        batch = draw(learner)
        rows = read(learner, learner._windows(batch, 0.0), slice(0, None, 2))
        assert torch.equal(rows.next_values, rows.next_targets) is not double


def test_target_network_is_copied_every_so_many_updates():
    options = {"target_interval": 3, "target_rate": 1.0, "replay": ReplayConfig(batch=B)}
    learner = make(**options)
    copied = weights_of(learner.target)
    for update in range(1, 8):
        learner.learn(draw(learner, seed=update, reward=paid), 0.0)
        if not update % 3:
            copied = weights_of(learner.policy.network)
        assert torch.equal(weights_of(learner.target), copied)
        assert torch.equal(weights_of(learner.policy.network), copied) is not bool(update % 3)


def test_target_network_goes_a_part_of_the_way():
    learner = make(target_rate=0.25, replay=ReplayConfig(batch=B))
    before = weights_of(learner.target)
    learner.learn(draw(learner, reward=paid), 0.0)
    expected = 0.75 * before + 0.25 * weights_of(learner.policy.network)
    torch.testing.assert_close(weights_of(learner.target), expected)


class SmallMDP:
    """Three states, the next one random whatever is done; rewards by state and action; of 16 steps one
    terminates the episode, and one truncates it, which costs nothing."""

    paid = np.array([[0.0, 1.0, 0.2], [1.0, 0.0, 0.4], [0.3, 0.1, 2.0]], np.float32)
    discount = 0.9

    def values(self):
        """The solution of Bellman's equation."""
        values = np.zeros((3, 3))
        for _ in range(500):
            after = values.max(1).mean() * 15 / 16
            values = self.paid + self.discount * after
        return values

    def draw(self, rng, steps):
        """Windows of two rows, by any actions: 64 for each step, of which exactly 4 terminate."""
        number = 64 * steps
        states = rng.integers(3, size=(2, number))
        action = rng.integers(3, size=(2, number))
        place = np.arange(number) // steps % 16
        batch = {
            "obs": np.eye(3, dtype=np.float32)[states],
            "action": action,
            "reward": self.paid[states, action],
            "terminated": np.zeros((2, number), bool),
            "truncated": np.zeros((2, number), bool),
            "first": np.zeros((2, number), bool),
            "acting": np.ones((2, number), bool),
            "valid": np.ones((2, number), bool),
            "chance": np.ones(number, np.float32),
            "item": np.arange(number),
        }
        batch["terminated"][0], batch["truncated"][0] = place == 0, place == 1
        batch["valid"][1] = ~(batch["terminated"][0] | batch["truncated"][0])
        return batch


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"double": False}, 0.35),
        ({"double": True, "dueling": True}, 0.35),
        ({"distribution": "c51", "atoms": 41, "value_range": (0.0, 20.0)}, 0.35),
        ({"distribution": "quantiles", "atoms": 16}, 0.5),
    ],
    ids=["plain", "double and dueling", "c51", "quantiles"],
)
def test_values_become_the_solution_of_bellmans_equation(options, tolerance):
    mdp, rng = SmallMDP(), np.random.default_rng(0)
    agent = AgentSpec((Observation("obs", (3,), "float32"),), Discrete(3))
    steps = 40
    learner = make(
        agent,
        replay=ReplayConfig(batch=64, steps=steps),
        n_step=1,
        discount=mdp.discount,
        learning_rate=0.01,
        learning_rate_schedule="linear",
        target_rate=0.1,
        **options,
    )
    for i in range(20):
        learner.learn(mdp.draw(rng, steps), i / 20)
    shown = {"obs": torch.eye(3)}
    with torch.no_grad():
        judged, _ = learner.policy.network(shown, torch.zeros(1, 3, dtype=torch.bool), {})
    got = learner.policy.expected(judged).numpy()
    assert np.abs(got - mdp.values()).max() < tolerance
    greedy = learner.policy.act_greedy(
        {"obs": np.eye(3, dtype=np.float32), "first": np.ones(3, bool)}
    )
    assert greedy["action"].tolist() == [1, 0, 2]


def test_equal_seeds_give_equal_weights_and_actions():
    a, b, c = make(seed=1, **RAINBOW), make(seed=1, **RAINBOW), make(seed=2, **RAINBOW)
    batch = draw(a)
    assert a.learn(batch, 0.0) == make(seed=1, **RAINBOW).learn(batch, 0.0) != c.learn(batch, 0.0)
    inputs = {"obs": batch["obs"][0], "first": batch["first"][0]}
    assert_equal(make(seed=1, **RAINBOW).policy.act(inputs), b.policy.act(inputs))


@pytest.mark.parametrize("variant", VARIANTS)
def test_save_and_load_continue_bit_for_bit(variant):
    a, b = make(seed=1, **VARIANTS[variant]), make(seed=2, **VARIANTS[variant])
    batches = [draw(a, seed=i, reward=paid) for i in range(3)]
    a.learn(batches[0], 0.1)
    b.learn(batches[2], 0.0)
    b.load(a.save())
    assert (a.learn(batches[1], 0.3), a.updates) == (b.learn(batches[1], 0.3), b.updates)
    assert_equal(a.save(), b.save())
    np.testing.assert_array_equal(a.priorities, b.priorities)


def test_load_when_the_network_differs_names_the_tensor():
    with pytest.raises(CheckpointError, match=r"streams.0.layers.0.weight"):
        make().load(make(hidden=(8,)).save())


@pytest.mark.parametrize(("variant", "number"), [("plain", 50), ("recurrent", 15)])
def test_two_ranks_equal_one_on_the_same_windows(variant, number):
    """Batches of two minibatches, weighted by how they were drawn; 1/4 and 3/4 of the windows."""
    replay = ReplayConfig(kind="prioritised", batch=B // 2, steps=2)
    options = VARIANTS[variant] | {"replay": replay, "learning_rate": 3e-3, "max_grad_norm": 0.5}
    whole = make(**options)
    batches = [draw(whole, seed=i, reward=paid, end=0.3) for i in range(10)]
    alone = [whole.learn(batches[i % 10], i / 50) for i in range(number)]
    share = {0: slice(0, B // 4), 1: slice(B // 4, B)}

    def follow(rank):
        learner = make(ranks=rank, **options)
        lanes, metrics = share[rank.rank], {}
        for i in range(number):
            batch = batches[i % 10]
            heads = {name for name, x in batch.items() if x.ndim == 1}
            mine = {n: x[lanes] if n in heads else x[:, lanes] for n, x in batch.items()}
            metrics = learner.learn(mine, i / 50)
        return learner.policy.weights(), metrics, learner.priorities

    (one, metrics, first), (other, same, second) = run_ranks(2, follow)
    assert_equal(one, other)
    assert metrics == same == pytest.approx(alone[-1], rel=1e-3, abs=1e-5)
    for name, weight in whole.policy.weights().items():
        np.testing.assert_allclose(one[name], weight, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(np.concatenate([first, second]), whole.priorities, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize("agent", [PLAIN, MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gpu_learns_what_the_cpu_learns(variant, agent):
    """Without a memory by a CUDA graph: the target network is copied between its replays."""
    options = VARIANTS[variant] | {"adam_epsilon": 0.1, "learning_rate": 0.05}
    options |= {"target_interval": 3, "target_rate": 1.0}
    here, there = (make(agent, device=device, **options) for device in ("cpu", "cuda"))
    for seed in range(12):
        batch = draw(here, agent, seed=seed, reward=paid)
        metrics, others = (learner.learn(copies(batch), 0.0) for learner in (here, there))
        assert metrics == pytest.approx(others, rel=1e-2, abs=1e-3)
        np.testing.assert_allclose(here.priorities, there.priorities, atol=1e-2)
    for name, weight in here.policy.weights().items():
        np.testing.assert_allclose(there.policy.weights()[name], weight, atol=1e-3, err_msg=name)


def test_minibatches_are_spread_over_what_was_drawn():
    """Prioritised windows are drawn in the order they lie: neighbours are of one lane and time."""
    learner = make(replay=ReplayConfig(batch=B // 4, steps=4))
    seen, shown = [], learner._shown
    learner._shown = lambda windows, part: (
        seen.append(windows.lanes[part].tolist()) or shown(windows, part)
    )
    learner.learn(draw(learner), 0.0)
    assert seen == [list(range(i, B, 4)) for i in range(4)]


def test_priorities_are_the_errors_of_each_window():
    learner = make(replay=ReplayConfig(batch=B), learning_rate=1e-9)
    batch = draw(learner, reward=paid)
    rows = read(learner, learner._windows(batch, 0.0))
    _, error = learner.loss(rows)
    learner.learn(batch, 0.0)
    np.testing.assert_allclose(learner.priorities, error, atol=1e-5)


def test_priorities_of_sequences_mix_the_largest_and_the_mean_error():
    learner = make(**VARIANTS["recurrent"], priority_mix=0.75, learning_rate=1e-9)
    batch = draw(learner, reward=paid, end=0.3)
    drawn = learner._windows(batch, 0.0)
    known = drawn.fields["known"].numpy()
    assert not known.all()
    _, error = learner.loss(read(learner, drawn))
    learner.learn(batch, 0.0)
    for lane, errors in enumerate(error.reshape(known.shape).T.tolist()):
        mine = [e for e, is_known in zip(errors, known[:, lane], strict=True) if is_known]
        by_hand = 0.75 * max(mine) + 0.25 * sum(mine) / len(mine)
        assert learner.priorities[lane] == pytest.approx(by_hand, rel=1e-3, abs=1e-4)


def test_importance_weights_undo_more_and_more_of_the_priorities():
    replay = ReplayConfig(kind="prioritised", batch=B, importance_exponent=0.4)
    learner = make(replay=replay)
    batch = draw(learner)
    for progress, exponent in ((0.0, 0.4), (0.5, 0.7), (1.0, 1.0)):
        weight = learner._windows(batch, progress).fields["weight"][0].numpy()
        expected = (batch["chance"] / batch["chance"].min()) ** -exponent
        np.testing.assert_allclose(weight, expected, rtol=1e-5)
    assert (make()._windows(batch, 0.0).fields["weight"] == 1).all()


def test_rows_that_are_not_valid_have_no_influence():
    options = VARIANTS["recurrent"]
    a, b = make(**options), make(**options)
    batch = draw(a, reward=paid, end=0.4)
    changed = copies(batch)
    wrong = ~batch["valid"]
    assert wrong.any()
    changed["action"][wrong] = 2
    changed["reward"][wrong] = 1e6
    b.policy.load(a.policy.save())
    assert a.learn(batch, 0.0) == b.learn(changed, 0.0)
    assert_equal(a.save(), b.save())


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_windows_are_judged_as_the_whole_sequence_is(kind, burn_in):
    """From the recorded state, over the burn-in, through ends of episodes; so are the rows n steps on."""
    learner = make(memory=kind, memory_size=8, chunk=4, burn_in=burn_in, n_step=3)
    rows = play(learner, PLAIN, end=0.2, reward=paid)
    batch, starts, lanes = windows(learner, rows)
    assert batch["first"][1:].any()
    network = learner.policy.network
    state = {name: torch.zeros(8, 8) for name in learner.policy.records.state.names}
    obs, first = torch.from_numpy(rows["obs"]), torch.from_numpy(rows["first"])
    with torch.no_grad():
        judged, _ = network({"obs": obs.flatten(0, 1)}, first, state)
    whole = judged.reshape(len(first), 8, 3)
    drawn = learner._windows(batch, 0.0)
    rows_read = read(learner, drawn)
    times = starts + burn_in + np.arange(4)[:, None]
    torch.testing.assert_close(
        rows_read.values.reshape(4, B, 3).detach(), whole[times, lanes], atol=1e-5, rtol=0
    )
    ends = starts + burn_in + drawn.fields["ends"].numpy()
    for got in (rows_read.next_targets, rows_read.next_values):
        torch.testing.assert_close(got.reshape(4, B, 3), whole[ends, lanes], atol=1e-5, rtol=0)


def lanes_of(policy, number, first):
    inputs = {"obs": np.zeros((number, 4), np.float32), "first": np.full(number, first)}
    for field in policy.records.state:
        inputs[field.name] = np.zeros((number, *field.shape), np.float32)
    return inputs


def test_as_many_actions_are_random_as_epsilon_says():
    agent = AgentSpec((VECTOR,), Discrete(50))
    policy = make(agent, epsilon_start=0.3).policy
    inputs = lanes_of(policy, 20_000, False)
    best = policy.act_greedy(inputs)["action"][0]
    action = policy.act(inputs)["action"]
    assert (action != best).mean() == pytest.approx(0.3 * 49 / 50, abs=0.015)
    counts = np.bincount(action[action != best], minlength=50)
    assert counts[np.arange(50) != best].min() > 60  # of 120 each


def test_ladder_gives_every_episode_its_own_share_of_random_actions():
    agent = AgentSpec((VECTOR,), Discrete(50))
    policy = make(agent, epsilon_start=0.4, ladder=7.0).policy
    assert policy.records.state.names == ("state.ladder",)
    begun = lanes_of(policy, 40_000, True)
    place = policy.act(begun)["state.ladder"].copy()
    assert (place.min(), place.max()) == pytest.approx((0, 1), abs=0.01)
    assert np.histogram(place, 10, (0, 1))[0] == pytest.approx([4000] * 10, rel=0.1)

    inside = lanes_of(policy, 40_000, False) | {"state.ladder": place}
    best = policy.act_greedy(inside)["action"][0]
    for _ in range(3):  # it stays what it is while the episode lasts
        answer = policy.act(inside)
        np.testing.assert_array_equal(answer["state.ladder"], place)
        for low in np.arange(0, 1, 0.1):
            here = (place >= low) & (place < low + 0.1)
            expected = (0.4 ** (1 + 7 * place[here])).mean() * 49 / 50
            assert (answer["action"][here] != best).mean() == pytest.approx(expected, abs=0.025)
    again = policy.act(inside | {"first": np.ones(40_000, bool)})["state.ladder"]
    assert abs(np.corrcoef(again, place)[0, 1]) < 0.05


def test_epsilon_falls_with_progress_and_travels_with_the_weights():
    learner = make(epsilon_start=1.0, epsilon_end=0.1, epsilon_fraction=0.5)
    batch = draw(learner)
    for progress, epsilon in ((0.0, 1.0), (0.25, 0.55), (0.5, 0.1), (0.9, 0.1)):
        assert learner.learn(batch, progress)["epsilon"] == pytest.approx(epsilon)
        assert learner.policy.weights()["epsilon"] == pytest.approx(epsilon)
    other = make(seed=5, epsilon_start=1.0).policy
    other.load_weights(learner.policy.weights())
    inputs = lanes_of(other, 5000, False)
    best = other.act_greedy(inputs)["action"][0]
    assert (other.act(inputs)["action"] != best).mean() == pytest.approx(0.1 * 2 / 3, abs=0.02)
    at_once = make(epsilon_end=0.1, epsilon_fraction=0.0)
    assert at_once.learn(draw(at_once), 0.0)["epsilon"] == pytest.approx(0.1)


def test_noise_explores_in_the_place_of_epsilon():
    agent = AgentSpec((VECTOR,), Discrete(8))
    learner = make(agent, noisy=0.5)
    assert learner.policy.weights()["epsilon"] == 0
    inputs = lanes_of(learner.policy, 2000, False)
    inputs["obs"] += 1
    assert len(set(learner.policy.act(inputs)["action"].tolist())) > 1
    assert len(set(learner.policy.act_greedy(inputs)["action"].tolist())) == 1
    assert learner.learn(draw(learner, agent), 0.0)["epsilon"] == 0


def test_every_32_rows_are_learned_with_a_noise_of_their_own(monkeypatch):
    learner = make(noisy=0.5, replay=ReplayConfig(batch=70))
    seen, forward = [], type(learner.target).forward

    def told(network, *args, noise=None):
        seen.append(noise)
        return forward(network, *args, noise=noise)

    monkeypatch.setattr(type(learner.target), "forward", told)
    batch, _, _ = windows(learner, play(learner, PLAIN), number=70)
    seen.clear()
    learner.learn(batch, 0.0)
    drawn = [{tuple(row) for row in noise.tolist()} for noise in seen]
    assert [len(noise) for noise in seen] == [70] * 3  # values, next values and their targets
    assert [len(rows) for rows in drawn] == [3] * 3
    assert len(set.union(*drawn)) == 9
    counts = np.unique(seen[0].numpy(), axis=0, return_counts=True)[1]
    assert counts.max() <= 32


def test_long_gradients_are_scaled_down():
    learner = make(max_grad_norm=0.01)
    norm = learner.learn(draw(learner, reward=paid), 0.0)["grad_norm"]
    assert norm > 0.02
    assert float(learner._adam.gradient.norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"noisy": 0.5}, {"ladder": 3.0}], ids=str)
def test_masks_are_never_violated(options):
    learner = make(MASKED, **options)
    rows = play(learner, MASKED, reward=paid)
    assert not rows["action_mask"].all()
    taken = np.take_along_axis(rows["action_mask"], rows["action"][:, :, None], 2)
    assert taken.all()
    inputs = {name: rows[name][0] for name in ("obs", "action_mask", "first")}
    inputs |= {name: rows[name][0] for name in learner.policy.records.state.names}
    greedy = learner.policy.act_greedy(inputs)["action"]
    assert np.take_along_axis(inputs["action_mask"], greedy[:, None], 1).all()
    batch, _, _ = windows(learner, rows)
    batch["action_mask"][1, 0] = False  # an agent that may do nothing does not act
    batch["acting"][1, 0] = False
    assert np.isfinite(list(learner.learn(batch, 0.0).values())).all()
    assert all(np.isfinite(x).all() for x in learner.save().values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_hundred_updates_give_what_they_gave(variant):
    """Guards the numbers of learning: `SRL_ACCEPT_NUMBERS=1` accepts others, and a commit says why."""
    options = {"learning_rate_schedule": "linear", "max_grad_norm": 0.5} | VARIANTS[variant]
    learner = make(seed=3, **options)
    number, metrics = learner.config.replay.drawn, {}
    batches = [
        windows(learner, play(learner, PLAIN, seed=i, reward=paid), i, number)[0] for i in range(5)
    ]
    calls = 200 // learner.config.replay.steps
    for i in range(calls):
        metrics = learner.learn(batches[i % 5], i / calls)
    assert learner.updates == 200
    found = {name: metrics[name] for name in ("loss", "td_error", "value")}
    found |= {"priorities": learner.priorities} | learner.policy.weights()
    check_numbers(NUMBERS, f"dqn, {variant}", found)
