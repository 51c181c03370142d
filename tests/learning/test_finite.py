"""Which number of a batch is not finite, and where it came from: hand-made batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from srl.core.algorithm import Records
from srl.core.block import Block, route_layout
from srl.core.env import AgentSpec, Box, Observation
from srl.core.spec import Field, Spec
from srl.learning.finite import Origin, Tracer, bad_metric, bad_weights

AGENT = AgentSpec(
    (
        Observation("obs", (2, 3), "float32"),
        Observation("wide", (), "float64"),
        Observation("recent", (2,), "float32", stack=3),
        Observation("frame", (4,), "uint8"),
    ),
    Box((2,), (-1.0,) * 2, (1.0,) * 2),
    central=(Observation("map", (2,), "float32"),),
)
RECORDS = Records(
    Spec((AGENT.action.field, Field("value", (), "float32"))),
    Spec((Field("memory", (3,), "float32", "chunk"),)),
    chunk=2,
)
ROLLOUT, LANES, ENVS = 6, 4, 2  # two agents an env
LAYOUT = route_layout(AGENT, RECORDS, rollout=ROLLOUT, lanes=LANES, envs=ENVS)
LAST = ROLLOUT
ORIGIN = Origin(env="toy/x", agents=3, envs_an_actor=4, seed=7)
"""Of three agents, two are on this route: lanes 0, 1 and 3, 4 of two envs."""
FLOATS = ("obs", "wide", "recent", "map", "action", "value", "memory", "reward")


def make_batch():
    """All finite; lanes are of envs 9 and 10, in the middle of their episodes."""
    batch = Block.allocate(LAYOUT).fields
    rng = np.random.default_rng(0)
    for name in FLOATS:
        batch[name][:] = rng.normal(size=batch[name].shape)
    batch["valid"][:] = batch["acting"][:] = True
    batch["lane"][:] = (27, 28, 30, 31)
    batch["episode"][:] = (3, 3, 5, 5)
    batch["step"][:] = (10, 10, 20, 20)
    batch["version"][:-1] = np.arange(100, 100 + ROLLOUT)[:, None]
    return batch


def find(batch):
    return Tracer(LAYOUT, ORIGIN).find(batch)


def test_a_finite_batch_has_nothing():
    assert find(make_batch()) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_observation_is_traced_to_its_env(value):
    batch = make_batch()
    batch["obs"][4, 3, 1, 2] = value
    place = find(batch)
    assert (place.field, place.kind, place.index) == ("obs", "observation", (1, 2))
    assert str(place.value) == str(value)
    assert (place.row, place.column, place.valid) == (4, 3, True)
    assert (place.lane, place.env, place.agent, place.actor) == (31, 10, 1, 2)
    assert (place.episode, place.step, place.version, place.others) == (5, 24, 104, 0)
    assert place.seed == 7
    words = str(place)
    assert f"env 10 (actor-2), agent 1 showed obs[1, 2] = {value} in step 24 of episode 5" in words
    assert "lane 31, row 4 of its block, recorded by version 104" in words


def test_episode_and_step_are_counted_from_its_beginning():
    batch = make_batch()
    batch["first"][1, 2] = batch["first"][3, 2] = True
    batch["reward"][5, 2] = np.inf
    place = find(batch)
    assert (place.kind, place.episode, place.step, place.env, place.agent) == (
        "reward",
        7,
        2,
        10,
        0,
    )
    assert "env 10 (actor-2) gave reward = inf" in str(place)


def test_first_is_of_the_lowest_row_and_seen_before_answered_before_paid():
    batch = make_batch()
    batch["obs"][3, 1] = np.nan
    for name in ("reward", "value", "wide"):
        batch[name][2, 3] = np.nan
    place = find(batch)
    assert (place.field, place.row, place.column) == ("wide", 2, 3)
    assert place.others == 3
    assert "3 more values" in str(place)
    batch["wide"][2, 3] = 0
    assert find(batch).field == "value"
    assert "the policy answered env 10 (actor-2), agent 1 with value = nan" in str(find(batch))
    batch["value"][2, 3] = 0
    assert find(batch).field == "reward"


@pytest.mark.parametrize("name", ["obs", "wide", "action", "value", "reward"])
def test_rows_that_are_not_valid_may_hold_anything(name):
    batch = make_batch()
    batch["valid"][2, 1] = False
    batch[name][2, 1] = np.nan
    assert find(batch) is None
    everywhere = Tracer(LAYOUT, ORIGIN).search(batch, counted=False)
    assert (everywhere.field, everywhere.row, everywhere.valid) == (name, 2, False)


@pytest.mark.parametrize(("name", "counts"), [("obs", True), ("value", True), ("reward", False)])
def test_final_observation_of_a_truncated_episode_counts_and_its_reward_does_not(name, counts):
    batch = make_batch()
    batch["truncated"][1, 1] = True
    batch["valid"][2, 1] = False
    batch[name][2, 1] = np.nan
    assert (find(batch) is not None) == counts
    batch["truncated"][1, 1], batch["terminated"][1, 1] = False, True
    assert find(batch) is None


@pytest.mark.parametrize(
    ("name", "counts"),
    [("obs", True), ("recent", True), ("map", True), ("value", False), ("reward", False)],
)
def test_of_the_last_row_only_what_is_seen_counts(name, counts):
    batch = make_batch()
    batch[name][-1] = np.nan
    assert (find(batch) is not None) == counts
    if counts:
        assert (find(batch).row, find(batch).version) == (LAST, 100 + LAST - 1)


def test_row_of_a_stack_is_its_newest():
    batch = make_batch()
    batch["recent"][2 + 3, 0, 1] = np.nan  # two rows of context
    place = find(batch)
    assert (place.field, place.row, place.index, place.env) == ("recent", 3, (1,), 9)
    batch = make_batch()
    batch["recent"][1, 0, 1] = np.nan  # of the block before
    assert find(batch) is None


def test_what_envs_share_is_traced_to_the_env():
    batch = make_batch()
    batch["map"][3, 1, 0] = np.nan
    place = find(batch)
    assert (place.field, place.env, place.agent, place.column) == ("map", 10, 0, 2)
    batch["valid"][3, 2] = False  # the other agent is still in the game
    assert find(batch) is not None
    batch["valid"][3, 3] = False
    assert find(batch) is None


@pytest.mark.parametrize(("number", "row"), [(0, 0), (1, 2), (2, 4), (3, LAST)])
def test_state_is_of_the_row_where_its_chunk_starts(number, row):
    batch = make_batch()
    batch["memory"][number, 1, 2] = np.nan
    place = find(batch)
    assert (place.field, place.kind, place.row, place.index) == ("memory", "state", row, (2,))
    batch["first"][row, 1] = True  # a state of the episode before is not read
    assert find(batch) is None


def test_numbers_that_are_only_huge_are_finite():
    batch = make_batch()
    batch["obs"][:] = np.finfo(np.float32).max
    batch["wide"][:] = -np.finfo(np.float64).max
    assert find(batch) is None


def test_lanes_of_an_unknown_actor_have_none():
    batch = make_batch()
    batch["obs"][0, 0] = np.nan
    place = Tracer(LAYOUT).find(batch)
    assert (place.env, place.actor) == (27, None)
    assert str(place).startswith("env 27 showed obs[0, 0] = nan")


@given(st.data())
def test_any_number_that_is_planted_in_a_valid_row_is_found(data):
    batch = make_batch()
    name = data.draw(st.sampled_from(("obs", "wide", "action", "value", "reward")))
    row, column = data.draw(st.integers(0, ROLLOUT - 1)), data.draw(st.integers(0, LANES - 1))
    field = batch[name]
    index = tuple(data.draw(st.integers(0, n - 1)) for n in field.shape[2:])
    field[(row, column, *index)] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    place = find(batch)
    assert (place.field, place.row, place.column, place.index) == (name, row, column, index)


def test_tensors_are_looked_at_where_they_lie():
    batch = make_batch()
    batch["obs"] = torch.from_numpy(batch["obs"])
    assert find(batch) is None
    batch["obs"][1, 2, 0, 1] = -torch.inf
    place = find(batch)
    assert (place.field, place.row, place.column, place.index) == ("obs", 1, 2, (0, 1))
    assert place.value == -np.inf


def test_layout_without_numbers_to_check_has_nothing():
    agent = AgentSpec((Observation("obs", (2,), "uint8"),), replace(AGENT.action, shape=(2,)))
    layout = route_layout(agent, Records(Spec(())), rollout=2, lanes=1, envs=1)
    batch = Block.allocate(layout).fields
    assert Tracer(layout).find(batch) is None


def test_metrics_and_weights():
    assert bad_metric({"a": 1.0, "b": 2}) is None
    assert bad_metric({"a": 1.0, "b": float("inf"), "c": float("nan")}) == "b"
    good = {"w": np.full((2, 2), 3e38, np.float32), "n": np.array(3)}
    assert bad_weights(good) is None
    assert bad_weights(good | {"bias": np.array([0, -np.inf, np.inf])}) == "bias"
