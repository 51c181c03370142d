"""The Python API: train, load, act, resume, evaluate, and begin with another run's weights."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import srl
from srl.core.compute import Compute
from srl.core.errors import CheckpointError, ConfigError
from srl.core.experiment import Experiment
from srl.experiments.cartpole import cartpole
from srl.launch.graph.opening import open_run
from srl.learning.checkpoint import list_checkpoints, read_checkpoint

TOY = f"{Path(__file__).parent / 'launch' / 'auditing.py'}:experiment"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> srl.Run:
    """A toy that is learned; several tests look at it, none changes it."""
    folder = tmp_path_factory.mktemp("api") / "run"
    return srl.train(TOY, launcher="inline", seed=1, stop__env_steps=12_000, out=str(folder))


def config_of(run: srl.Run) -> dict[str, Any]:
    return json.loads((run.folder / "config.json").read_text())


def test_train_returns_folder_and_summary(run: srl.Run) -> None:
    assert run.summary["status"] == "completed"
    assert run.summary == json.loads((run.folder / "summary.json").read_text())
    names = {path.name for path in run.folder.iterdir()}
    folders = {"tb", "checkpoints", "versions", "logs", "errors"}
    assert names == folders | {"config.json", "summary.json", "metrics.jsonl", "evaluations.jsonl"}


def test_train_prints_nothing_by_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    srl.train(TOY, launcher="inline", stop__env_steps=300, out=str(tmp_path / "run"))
    assert capfd.readouterr() == ("", "")


def test_options_are_those_of_the_command_line(tmp_path: Path) -> None:
    run = srl.train(
        TOY,
        launcher="inline",
        out=str(tmp_path / "run"),
        stop__env_steps=300,
        max_staleness=0,
        algorithm__hidden=(8, 4),
        algorithm__normalise_observations=True,
        env__options='{"choices": 3}',
    )
    config = config_of(run)
    assert config["algorithm"]["hidden"] == [8, 4]
    assert config["algorithm"]["normalise_observations"] is True
    assert config["max_staleness"] == 0
    assert config["env"]["options"] == '{"choices": 3}'


def test_experiment_object_is_accepted(tmp_path: Path) -> None:
    experiment: Experiment[Any] = cartpole()
    out = str(tmp_path / "run")
    run = srl.train(
        experiment, launcher="inline", out=out, stop__env_steps=1500, stop__return=1000.0
    )
    assert run.summary["experiment"] == "cartpole"
    assert run.summary["env_steps"] >= 1500


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"actor__count": 2}, "did you mean --actors.count"),
        ({"actors__count": 0}, "actors.count must be at least 1"),
        ({"algorithm__learning_rate": "fast"}, "learning-rate"),
    ],
)
def test_bad_option_raises(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        srl.train(TOY, out=str(tmp_path / "run"), **options)
    assert not (tmp_path / "run").exists()


def test_loaded_policy_acts(run: srl.Run) -> None:
    policy = srl.load(run.folder)
    symbols = np.eye(4, dtype=np.float32)
    assert [policy.act(symbol) for symbol in symbols] == [0, 1, 2, 3]
    assert type(policy.act(symbols[0])) is int
    sampled = [policy.act(symbols[2], greedy=False) for _ in range(50)]
    assert sampled.count(2) > 25


def test_loaded_policy_refuses_another_shape(run: srl.Run) -> None:
    with pytest.raises(ConfigError, match=r"has shape \(4,\), got \(5,\)"):
        srl.load(run.folder).act(np.zeros(5))


def test_loaded_policy_plays_its_gymnasium_env(tmp_path: Path) -> None:
    run = srl.train(
        "gym/Pendulum-v1", launcher="inline", stop__env_steps=2048, out=str(tmp_path / "run")
    )
    policy = srl.load(run.folder)
    env = gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=0)
    for _ in range(20):
        action = policy.act(observation, greedy=False)
        assert env.action_space.contains(action)
        observation, *_ = env.step(action)
    env.close()


def test_evaluation_agrees_with_the_summary(run: srl.Run) -> None:
    evaluation = srl.evaluate_run(run.folder)
    assert len(evaluation.returns) == 100
    assert evaluation.mean == run.summary["eval_return"]
    assert len(srl.evaluate_run(run.folder, episodes=7).returns) == 7


def test_resume_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = srl.train(TOY, launcher="inline", stop__env_steps=600, out=str(out))
    second = srl.resume(out, stop__env_steps=1500)
    assert second.folder == first.folder
    assert second.summary["env_steps"] >= 1500
    assert second.summary["version"] > first.summary["version"]
    assert config_of(second)["stop"]["env_steps"] == 1500


def test_init_from_begins_with_the_weights_of_another_run(run: srl.Run, tmp_path: Path) -> None:
    again = srl.train(
        TOY,
        launcher="inline",
        stop__env_steps=300,
        algorithm__learning_rate=1e-9,
        checkpoint__keep=10,
        init_from=str(run.folder),
        out=str(tmp_path / "run"),
    )
    assert again.summary["eval_return"] == run.summary["eval_return"]
    assert again.summary["env_steps"] < 1000  # of its own
    first = read_checkpoint(list_checkpoints(again.folder / "checkpoints")[0])
    donor = read_checkpoint(list_checkpoints(run.folder / "checkpoints")[-1])
    assert first.manifest["version"] == 0
    for name, array in donor.sections["trainer-0"].items():
        if name.startswith("learner.weights/"):
            np.testing.assert_array_equal(array, first.sections["trainer-0"][name])


def test_init_from_another_network_raises(run: srl.Run, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="of another agent, or of other options"):
        srl.train(TOY, algorithm__hidden=(5,), init_from=str(run.folder), out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


class Counted(gymnasium.Env):
    """Spaces that do not count from 0, under keys with dots."""

    observation_space = gymnasium.spaces.Dict(
        {"kind.a": gymnasium.spaces.Discrete(3, start=5), "b": gymnasium.spaces.Box(0, 1, (2,))}
    )
    action_space = gymnasium.spaces.MultiDiscrete([[2, 3]], start=[[10, 20]])

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, False, {}


def test_loaded_policy_speaks_the_env_s_own_spaces() -> None:
    from srl.algorithms.ppo import PPOConfig
    from srl.api import LoadedPolicy
    from srl.core.env import EnvRequest
    from srl.envs.gym import GymFamily

    request = EnvRequest(
        name="counted", options={}, wrappers=(), num_envs=1, seed=0, first_env=0, reseed="episode"
    )
    (agent,) = GymFamily.wrap(Counted, request).spec.agents.values()
    policy = LoadedPolicy(PPOConfig().make_policy(agent, seed=0, compute=Compute()), agent)
    env = Counted()
    observation, _ = env.reset(seed=0)
    for greedy in (True, False):
        for _ in range(20):
            observation, *_ = env.step(policy.act(observation, greedy=greedy))


def test_loaded_policy_remembers_an_episode_and_forgets_at_a_reset():
    from srl.algorithms.ppo import PPOConfig
    from srl.api import LoadedPolicy
    from srl.core.env import AgentSpec, Discrete, Observation

    agent = AgentSpec((Observation("obs", (2,), "float32", stack=3),), Discrete(7))
    config = PPOConfig(memory="gru", memory_size=8, hidden=(), rollout=16)
    made = config.make_policy(agent, seed=3, compute=Compute())
    seen = []
    act = made.act_greedy

    def remember(inputs):
        seen.append({name: array.copy() for name, array in inputs.items()})
        return act(inputs)

    made.act_greedy = remember
    policy = LoadedPolicy(made, agent)
    for _ in range(2):
        policy.reset()
        for t in range(4):
            assert 0 <= policy.act(np.full(2, t + 1, np.float32)) < 7
    frames = [inputs["obs"][0, :, 0].tolist() for inputs in seen]
    assert frames == 2 * [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert [bool(inputs["first"][0]) for inputs in seen] == 2 * [True, False, False, False]
    states = [inputs["state.hidden"] for inputs in seen]
    assert not states[0].any()
    assert states[4].any()  # of the episode before: `first` tells the policy to forget it
    np.testing.assert_array_equal(states[1], states[5])


def test_resume_with_blocks_of_another_shape_goes_on_from_the_weights(tmp_path: Path) -> None:
    memory = {"algorithm__memory": "gru", "algorithm__rollout": 16, "algorithm__chunk": 8}
    options = {"launcher": "inline", "evaluation__episodes": 0, "stop__env_steps": 600}
    run = srl.train("toy/recall", out=str(tmp_path / "run"), **memory, **options)
    before = run.summary
    again = srl.resume(run.folder, algorithm__burn_in=4, stop__env_steps=before["env_steps"] + 600)
    assert again.summary["status"] == "completed", again.summary["reason"]
    assert again.summary["version"] > before["version"]


def test_loaded_policy_takes_observations_by_name_where_the_env_has_no_own(tmp_path: Path) -> None:
    options = {"stop__env_steps": 300, "evaluation__episodes": 0, "launcher": "inline"}
    run = srl.train("toy/masked", out=str(tmp_path / "run"), **options)
    policy = srl.load(run.folder)
    _, _, plan = open_run(run.folder)
    shown = {o.name: np.zeros(o.shape, o.dtype) for o in plan.routes[0].agent_spec().observations}
    for allowed in range(len(shown["action_mask"])):
        shown["action_mask"][:] = np.arange(len(shown["action_mask"])) == allowed
        assert policy.act(shown) == allowed
