"""Exported policies act as SRL does: by ONNX Runtime and by torch, for any number of lanes."""

import functools
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import srl
from srl import cli
from srl.algorithms.dqn import DQNConfig
from srl.algorithms.ppo import PPOConfig
from srl.algorithms.sac import SACConfig
from srl.algorithms.td3 import TD3Config
from srl.core.compute import Compute
from srl.core.env import ActionSpace, AgentSpec, Box, Discrete, MultiDiscrete, Observation
from srl.core.errors import ConfigError
from srl.nets.greedy import Greedy, trace
from srl.tools.export import write_policy

VECTOR = Observation("obs", (4,), "float32")
BOX = Box((2, 1), (-0.02, -np.inf), (0.02, 0.01))
CHOICES = MultiDiscrete((3, 2), start=(1, -1), shape=(2, 1))
CATEGORIES = Observation("kind", (2,), "int64", categories=(3, 4), start=(1, 5))
FRAMES = Observation("obs", (84, 84), "uint8", stack=4)
ENTITIES = Observation("others", (5, 3), "float32")
PRESENT = Observation("others_mask", (5,), "int8")
MASKED = (VECTOR, Observation("action_mask", (3,), "int8"))
MEMORY: dict[str, Any] = {"memory_size": 8, "chunk": 8}
CASES = {
    "numbers, normalised, LSTM": (
        AgentSpec((Observation("obs", (4,), "float64"),), BOX),
        PPOConfig(normalise_observations=True, memory="lstm", **MEMORY),
    ),
    "several choices, of categories and numbers": (
        AgentSpec((CATEGORIES, VECTOR), CHOICES),
        PPOConfig(),
    ),
    "masked, GRU, a critic that sees more": (
        AgentSpec(MASKED, Discrete(3, start=2), central=(Observation("whole", (5,), "float32"),)),
        PPOConfig(memory="gru", central_value=True, **MEMORY),
    ),
    "stacked images": (AgentSpec((FRAMES,), Discrete(6)), PPOConfig()),
    "values of actions: dueling, atoms, noise, a ladder, masked, LSTM": (
        AgentSpec(MASKED, Discrete(3, start=2)),
        DQNConfig(dueling=True, distribution="c51", noisy=0.5, ladder=3.0, memory="lstm", **MEMORY),
    ),
    "GTrXL": (
        AgentSpec((VECTOR,), Discrete(3)),
        PPOConfig(memory="gtrxl", memory_length=4, memory_layers=1, memory_heads=2, **MEMORY),
    ),
    "sets of entities": (
        AgentSpec((ENTITIES, PRESENT, VECTOR), Discrete(3)),
        PPOConfig(encoder="entities", entity_size=8, entity_heads=2),
    ),
    "images by the resnet": (AgentSpec((FRAMES,), Discrete(6)), PPOConfig(encoder="resnet")),
    "images by the light network": (AgentSpec((FRAMES,), Discrete(6)), DQNConfig(encoder="light")),
    "bounded by tanh": (
        AgentSpec((VECTOR,), Box((2,), (-2.0, 0.0), (2.0, 6.0))),
        TD3Config(),
    ),
    "squashed Gaussian, normalised": (
        AgentSpec((VECTOR,), Box((2,), (-2.0, 0.0), (2.0, 6.0))),
        SACConfig(normalise_observations=True),
    ),
}


def make_policy(agent, config):
    """A policy with fresh weights, large enough that its actions differ; moments are not 0 and 1."""
    rng = np.random.default_rng(0)
    policy = config.make_policy(agent, seed=0, compute=Compute())
    weights = {name: x.copy() for name, x in policy.weights().items()}
    for name, x in weights.items():
        if name.startswith(("policy_head", "head")) and name.endswith("weight"):
            np.multiply(x, 50, out=x)
        if "normaliser" in name:
            x[...] = rng.uniform(0.5, 2, x.shape)
    policy.load_weights(weights)
    return policy


def draw(observation: Observation, lanes: int, rng: np.random.Generator) -> np.ndarray:
    """What an env might show, counted as it counts."""
    shape = (lanes, *observation.seen_shape)
    if observation.categories:
        kinds = rng.integers(0, observation.categories, shape) + observation.start
        return kinds.astype(observation.dtype)
    if observation.name.endswith("_mask"):
        mask = rng.integers(0, 2, shape)
        mask[:, 1] = 1
        return mask.astype(observation.dtype)
    if observation.dtype == "uint8":
        return rng.integers(0, 256, shape, np.uint8)
    return rng.normal(size=shape).astype(observation.dtype)


def as_taken(action: np.ndarray, space: ActionSpace) -> np.ndarray:
    """What an env is given of the policy's answer."""
    if isinstance(space, Discrete):
        return action + space.start
    if isinstance(space, MultiDiscrete):
        return (action + np.array(space.start)).reshape(-1, *space.shape)
    low, high = (np.reshape(x, space.shape) for x in (space.low, space.high))
    return np.clip(action, low, high)


def run_torch(path: Path):
    module = torch.export.load(path).module()

    def run(inputs):
        answer = module({name: torch.from_numpy(x) for name, x in inputs.items()})
        return {name: x.numpy() for name, x in answer.items()}

    return run


def run_onnx(path: Path):
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def check_parity(policy, agent, run, exported) -> set[bytes]:
    """Compare over a few steps, with what is remembered handed on; returns the actions taken."""
    rng, taken = np.random.default_rng(1), set()
    for lanes in (1, 2, 7):
        state = {f.name: np.zeros((lanes, *f.shape), f.dtype) for f in policy.records.state.fields}
        for step in range(4):
            seen = {o.name: draw(o, lanes, rng) for o in agent.observations}
            first = rng.random(lanes) < (0.3 if step else 1.0)
            rows = {
                o.name: seen[o.name] - np.reshape(o.start, o.shape) if o.start else seen[o.name]
                for o in agent.observations
            }
            rows |= {o.name: np.zeros((lanes, *o.shape), o.dtype) for o in agent.central}
            wanted = policy.act_greedy({**rows, "first": first, **state})
            inputs = {**seen, **({"first": first, **state} if state else {})}
            assert {k: (x.shape[1:], str(x.dtype)) for k, x in inputs.items()} == exported.inputs
            got = run(inputs)
            assert {k: (x.shape[1:], str(x.dtype)) for k, x in got.items()} == exported.outputs
            action = as_taken(wanted["action"], agent.action)
            np.testing.assert_allclose(got.pop("action"), action, rtol=0, atol=1e-5)
            assert got.keys() == {f"next_{name}" for name in state}
            for name in state:
                np.testing.assert_allclose(got[f"next_{name}"], wanted[name], rtol=0, atol=1e-5)
            state = {name: wanted[name].copy() for name in state}
            taken |= {row.tobytes() for row in action}
    return taken


@pytest.mark.parametrize("case", CASES)
def test_exported_policy_acts_as_srl_does(case, tmp_path, monkeypatch):
    agent, config = CASES[case]
    policy = make_policy(agent, config)
    monkeypatch.setattr("srl.nets.greedy.trace", functools.cache(trace))  # both are of one graph
    greedy = functools.cache(Greedy)
    monkeypatch.setattr("srl.nets.greedy.Greedy", greedy)
    given = make_policy(agent, config)
    path = tmp_path / "policy.pt2"
    exported = write_policy(given, agent, "torch", path)
    assert len(check_parity(policy, agent, run_torch(path), exported)) > 1, "one fits all: no proof"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    exported = write_policy(given, agent, "onnx", tmp_path / "policy.onnx")
    check_parity(policy, agent, run_onnx(exported.path), exported)
    assert len(list(tmp_path.iterdir())) == 2, "weights are in the file itself"


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory) -> Path:
    """A run that kept versions; several tests look at it, none changes it."""
    out = tmp_path_factory.mktemp("exported") / "run"
    options = {"launcher": "inline", "stop__env_steps": 3000, "evaluation__episodes": 2}
    return srl.train("cartpole", out=str(out), **options).folder


def test_command_exports_the_policy_of_a_run(cartpole, tmp_path, capsys):
    path = tmp_path / "mine.pt2"
    words = ["export", str(cartpole), "--format", "torch", "--out", str(path)]
    assert cli.main(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(path),
        "input   obs  [N, 4] float32",
        "output  action  [N] int64",
    ]
    policy, run, rng = srl.load(cartpole), run_torch(path), np.random.default_rng(0)
    seen = rng.normal(size=(50, 4)).astype(np.float32)
    assert run({"obs": seen})["action"].tolist() == [policy.act(row) for row in seen]


def test_version_is_that_which_load_finds(cartpole, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("srl.api.write_policy", lambda *given: written.append(given))
    for version in (None, "best"):
        srl.export_run(cartpole, format="torch", out=tmp_path / "a.pt2", version=version)
        policy, agent, form, path = written.pop()
        wanted = srl.load(cartpole, version=version)
        assert (agent, form, path) == (wanted._agent, "torch", tmp_path / "a.pt2")
        for name, x in wanted._policy.weights().items():
            np.testing.assert_array_equal(policy.weights()[name], x)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "needs --format onnx or"),
        (["--format", "onxx"], "'onxx': did you mean 'onnx'"),
        (["--format", "torch", "--out", "a.onnx"], "is a .pt2 file"),
        (["--format", "torch", "--out", "nowhere/a.pt2"], "there is no folder"),
        (["--format", "torch", "--policy", "other"], "no policy 'other', but main"),
        (["--format", "torch", "--version", "77"], "77"),
    ],
)
def test_bad_input_is_refused(cartpole, tmp_path, monkeypatch, capsys, words, problem):
    monkeypatch.chdir(tmp_path)
    before = set(cartpole.iterdir())
    assert cli.main(["export", str(cartpole), *words]) == 2
    assert problem in capsys.readouterr().err
    assert set(cartpole.iterdir()) == before
    assert not list(tmp_path.iterdir())


def test_folder_that_is_no_run_is_said_to_be_none(tmp_path):
    with pytest.raises(ConfigError, match="is not a run folder"):
        srl.export_run(tmp_path / "nothere", format="torch")


def test_missing_packages_are_named_with_their_extra_before_the_run_is_read(tmp_path, monkeypatch):
    (tmp_path / "config.json").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"needs onnx, onnxscript: pip install 'really-scalable-rl\[onnx\]'"
    ):
        srl.export_run(tmp_path, format="onnx")


def test_policy_that_is_no_network_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="only policies that are"):
        write_policy(cast("Any", object()), AgentSpec((VECTOR,), Discrete(2)), "torch", tmp_path)


class Undecided(nn.Module):
    """A network whose way depends on what it sees."""

    def __init__(self, observations):
        super().__init__()
        self.num_features = 4

    def forward(self, obs):
        return obs["obs"] * (2 if float(obs["obs"].sum()) > 0 else 1)


class Bits(Undecided):
    """A network that ONNX has no words for."""

    def forward(self, obs):
        return obs["obs"].view(torch.int32).float()


def test_network_that_onnx_cannot_say_is_refused(tmp_path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    agent = AgentSpec((VECTOR,), Discrete(2))
    policy = make_policy(agent, PPOConfig(network=f"{__file__}:Bits"))
    with pytest.raises(ConfigError, match=r"ONNX cannot say what the policy does: .*view"):
        write_policy(policy, agent, "onnx", tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_network_that_torch_cannot_follow_is_refused(tmp_path):
    agent = AgentSpec((VECTOR,), Discrete(2))
    policy = make_policy(agent, PPOConfig(network=f"{__file__}:Undecided"))
    with pytest.raises(ConfigError, match="torch cannot follow what ActorCritic does"):
        write_policy(policy, agent, "torch", tmp_path / "policy.pt2")
    assert not list(tmp_path.iterdir())
