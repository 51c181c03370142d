"""What is done about a fault: the words, the file, the counts."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors
import torch

from srl.algorithms.ppo import PPOConfig
from srl.core.algorithm import Records
from srl.core.block import Block, route_layout
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.spec import Field, Spec
from srl.learning.finite import Origin, Tracer, bad_weights
from srl.learning.guard import MOST_IN_A_ROW, MOST_KEPT, Guard, read_batch
from srl.testing.batches import record_batches

AGENT = AgentSpec((Observation("obs", (2,), "float32"),), Discrete(2))
LAYOUT = route_layout(
    AGENT,
    Records(Spec((AGENT.action.field, Field("value", (), "float32")))),
    rollout=2,
    lanes=2,
    envs=2,
)
FINE = {"weight": np.zeros(3)}


def make_batch(**bad):
    batch = Block.allocate(LAYOUT).fields
    batch["valid"][:] = True
    batch["lane"][:] = (4, 5)
    for name, value in bad.items():
        batch[name][1, 1] = value
    return batch


@pytest.fixture
def run(tmp_path):
    (tmp_path / "errors").mkdir()
    return tmp_path


def make_guard(folder, on_nan="stop"):
    tracer = Tracer(LAYOUT, Origin("file.py:Mine", envs_an_actor=4))
    return Guard(tracer, on_nan=on_nan, worker="trainer-0", folder=folder)


def test_fault_of_an_env_says_which_and_what_to_do(run):
    guard, batch = make_guard(run), make_batch(obs=np.nan)
    fault = guard.before(batch)
    words = guard.report(fault, batch, 41)
    path = run / "errors" / "nan-trainer-0-00000041.safetensors"
    assert words.startswith("env 5 (actor-1) showed obs[0] = nan in step 1 of episode 0")
    assert f"The batch is kept in {path}." in words
    assert "srl check-env file.py:Mine" in words
    assert "--on-nan skip" in words
    assert f"srl resume {run} goes on from a checkpoint, once there is one" in words


def test_file_has_the_batch_and_says_what_is_wrong_with_it(run):
    guard, batch = make_guard(run), make_batch(reward=-np.inf)
    guard.report(guard.before(batch), batch, 3)
    (path,) = (run / "errors").iterdir()  # nothing aside is left
    arrays, header = read_batch(path)
    assert arrays.keys() == batch.keys()
    for name, array in batch.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
    assert (header["worker"], header["version"]) == ("trainer-0", 3)
    assert (header["what"], header["name"], header["env"]) == ("recorded", "reward", "file.py:Mine")
    assert header["place"]["value"] == "-inf"
    assert (header["place"]["env"], header["place"]["row"]) == (5, 1)
    with safetensors.safe_open(path, framework="numpy") as file:
        text = file.metadata()["fault"]
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_fault_of_the_policy_advises_about_learning(run):
    guard, batch = make_guard(run), make_batch(value=np.inf)
    (run / "checkpoints" / "00000030").mkdir(parents=True)
    (run / "checkpoints" / "00000030" / "manifest.json").write_text("{}")
    words = guard.report(guard.before(batch), batch, 41)
    assert words.startswith("the policy answered env 5 (actor-1) with value = inf")
    assert "Lower the learning rate" in words
    assert "goes on from checkpoint 00000030" in words
    assert "mend the env" not in words.lower()


@pytest.mark.parametrize(
    ("metrics", "weights", "what", "name"),
    [
        ({"loss": 1.0, "grad_norm": float("nan")}, FINE, "metric", "grad_norm"),
        ({"loss": 1.0}, {"a": np.zeros(2), "b": np.array([np.inf])}, "weights", "b"),
    ],
)
def test_what_came_of_learning(run, metrics, weights, what, name):
    guard, batch = make_guard(run), make_batch()
    fault = guard.after(metrics, weights, batch, 41)
    assert (fault.what, fault.name, fault.place) == (what, name, None)
    words = guard.report(fault, batch, 41)
    assert words.startswith(f"learning has diverged: {name} is n")
    assert "after version 41" in words
    assert "Lower the learning rate" in words
    assert guard.after({"loss": 1.0}, FINE, batch, 41) is None


def test_learning_that_diverges_of_a_row_that_is_not_valid_names_it(run):
    guard, batch = make_guard(run), make_batch(obs=np.nan)
    batch["valid"][1, 1] = False
    assert guard.before(batch) is None
    fault = guard.after({"loss": float("nan")}, FINE, batch, 1)
    assert "in a row that should not matter, env 5 (actor-1) showed obs[0] = nan" in fault.words
    assert "Mend the env" in guard.report(fault, batch, 1)


def test_skipping_ends_after_so_many_in_a_row(run):
    guard, learner = make_guard(run, "skip"), SimpleNamespace(save=lambda: {"a": np.zeros(1)})
    for _ in range(2):
        for _ in range(MOST_IN_A_ROW):
            assert not guard.stops
            assert guard.state_of(learner) is not None
            assert guard.skip() == {"train_samples": 0.0}
        assert guard.stops
        guard.learned()
    assert guard.skipped == 2 * MOST_IN_A_ROW
    assert not guard.stops
    for _ in range(MOST_IN_A_ROW):
        guard.skip()
    batch = make_batch(obs=np.nan)
    words = guard.report(guard.before(batch), batch, 50)
    assert f"{MOST_IN_A_ROW} batches were skipped right before this one" in words
    assert "--on-nan skip" not in words


def test_stopping_keeps_no_copy_of_the_learner(run):
    guard = make_guard(run, "stop")
    assert guard.stops
    assert guard.state_of(SimpleNamespace(save=lambda: pytest.fail("a copy"))) is None


def test_counts_are_saved(run):
    guard = make_guard(run, "skip")
    for _ in range(3):
        guard.skip()
    guard.learned()
    for _ in range(MOST_IN_A_ROW):
        guard.skip()
    again = make_guard(run, "skip")
    again.load(guard.save())
    assert again.skipped == 3 + MOST_IN_A_ROW
    assert again.stops


def test_only_the_first_batches_are_kept(run):
    guard, batch = make_guard(run, "skip"), make_batch(obs=np.nan)
    for version in range(MOST_KEPT + 3):
        words = guard.report(guard.before(batch), batch, version)
    assert f"not kept: {MOST_KEPT} others" in words
    assert len(list((run / "errors").iterdir())) == MOST_KEPT
    assert (run / "errors" / "nan-trainer-0-00000000.safetensors").exists()


def test_batch_that_cannot_be_kept_does_not_hide_the_fault(run):
    (run / "errors").rmdir()
    guard, batch = make_guard(run), make_batch(obs=np.nan)
    words = guard.report(guard.before(batch), batch, 0)
    assert words.startswith("env 5 (actor-1) showed")
    assert "could not be kept" in words
    no_folder = make_guard(None)
    assert "The batch is not kept. Mend" in no_folder.report(no_folder.before(batch), batch, 0)


def test_tensors_are_kept_as_arrays(run):
    guard, batch = make_guard(run), make_batch(obs=np.nan)
    batch["obs"] = torch.from_numpy(batch["obs"])
    guard.report(guard.before(batch), batch, 0)
    arrays, _ = read_batch(run / "errors" / "nan-trainer-0-00000000.safetensors")
    np.testing.assert_array_equal(arrays["obs"], batch["obs"].numpy())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_learner_is_put_back(device):
    """All of it; on a GPU, where updates are graphs that know their weights by address, too."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    config = PPOConfig(
        rollout=16,
        batch_size=64,
        minibatch_size=32,
        hidden=(8,),
        normalise_observations=True,
        normalise_returns=True,
    )
    agent = AgentSpec((Observation("obs", (4,), "float32"),), Discrete(2))
    compute = Compute(device=device)
    learner = config.make_learner(agent, seed=0, compute=compute, ranks=Alone())
    good = record_batches(learner.policy, agent, rollout=16, lanes=4, blocks=3)
    for batch in good:
        learner.learn(batch, 0.0)
    before = learner.save()
    bad = {name: array.copy() for name, array in good[0].items()}
    bad["reward"][3, 1] = np.nan
    learner.learn(bad, 0.0)
    assert bad_weights(learner.policy.weights()) is not None
    learner.load(before)
    after = learner.save()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    metrics = learner.learn(good[1], 0.0)
    assert np.isfinite(list(metrics.values())).all()
    assert bad_weights(learner.policy.weights()) is None
