"""Rows, masks and episode boundaries as an actor writes them, over several blocks (Counter env).

An episode of `LENGTH` steps takes LENGTH + 1 rows: the final observation is a row of its own. So
row `k` of a lane, counted from its start, is step `k % (LENGTH + 1)` of episode `k // (LENGTH + 1)`.
"""

import itertools

import numpy as np
import pytest

from srl.core.block import Layout, route_spec
from srl.core.env import EnvRequest
from srl.envs.toy import Counter
from srl.rollout.lanes import RouteEnds
from srl.streams.inference.inline import InlineInference
from srl.streams.parameters.inline import InlineParameters
from srl.streams.samples.inline import InlineSamples
from srl.testing.fakes import FakePolicy
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.workers.actor import Actor

AGENT = Counter().agent
LENGTH, FIRST_ENV = 3, 10


class Rollout:
    """An actor of `groups` groups of `envs` envs over inline streams, and what it delivers."""

    def __init__(self, *, rollout, sets, envs=2, groups=1, ends="terminated"):
        self.agents = sum(len(members) for members in sets)
        self.streams, routes = [], []
        self.parameters = InlineParameters()
        self.parameters.publish({"weight": np.zeros((), np.float32)}, 3)
        for members in sets:
            policy = FakePolicy(AGENT)
            spec = route_spec(AGENT, policy.records)
            layout = Layout(spec, rollout + 1, envs * len(members), envs)
            slots = groups + 1
            buffer = Arena.heap(block_arena_bytes(layout, 1, slots)).buffer
            stream = InlineSamples(BlockArena(buffer, layout, 1, slots))
            self.streams.append(stream)
            inference = InlineInference(policy, self.parameters, ("obs", "first"))
            routes.append(
                RouteEnds(AGENT, members, layout, stream.producer(0), inference, policy.records)
            )
        made = [
            Counter.make_batch(
                EnvRequest(
                    name="counter",
                    options={"length": LENGTH, "agents": self.agents, "ends": ends},
                    wrappers=(),
                    num_envs=envs,
                    seed=0,
                    first_env=FIRST_ENV + g * envs,
                    reseed="episode",
                    sets=sets,
                )
            )
            for g in range(groups)
        ]
        self.actor = Actor("actor-0", made, routes, first_env=FIRST_ENV)

    def blocks(self, number):
        """The first `number` blocks of every route, copied."""
        found = [[] for _ in self.streams]
        consumers = [stream.consumer() for stream in self.streams]
        for consumer in consumers:
            consumer.grant({0: number}, 0)
        self.actor.open()
        while min(map(len, found)) < number:
            assert self.actor.step() or any(s.queue for s in self.streams)
            for consumer, blocks in zip(consumers, found, strict=True):
                for delivery in consumer.recv(100):
                    fields = delivery.block.fields
                    blocks.append({name: array.copy() for name, array in fields.items()})
                    consumer.take(delivery, dropped=False)
        return found


def expected_rows(start, count, envs, agents, ends="terminated"):
    """What rows `start .. start + count` of all lanes hold; lanes are env-major."""
    k = np.arange(start, start + count)[:, None]
    env, agent = np.divmod(np.arange(len(envs) * len(agents)), len(agents))
    step, episode = k % (LENGTH + 1), k // (LENGTH + 1)
    shown = np.broadcast_arrays(step, episode, np.array(envs)[env], np.array(agents)[agent])
    step = np.broadcast_to(step, shown[0].shape)
    valid = step < LENGTH
    ended = step == LENGTH - 1
    return {
        "obs": np.stack(shown, -1).astype(np.float32),
        "first": step == 0,
        "valid": valid,
        "acting": np.ones_like(valid),
        "reward": np.where(valid, step, 0).astype(np.float32),
        "terminated": ended & (ends == "terminated"),
        "truncated": ended & (ends == "truncated"),
    }


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize("rollout", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("agents", [1, 2])
def test_rows_and_masks_are_those_of_the_episodes(rollout, agents, ends):
    made = Rollout(rollout=rollout, sets=(tuple(range(agents)),), ends=ends)
    (blocks,) = made.blocks(7)
    for number, block in enumerate(blocks):
        rows = expected_rows(
            number * rollout, rollout + 1, [FIRST_ENV, FIRST_ENV + 1], range(agents), ends
        )
        for name in ("obs", "first", "valid", "acting"):
            np.testing.assert_array_equal(block[name], rows[name], err_msg=name)
        for name in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(block[name][:-1], rows[name][:-1], err_msg=name)
        np.testing.assert_array_equal(block["mark"][:-1], rows["obs"][:-1].sum(-1))
        np.testing.assert_array_equal(block["action"][:-1], rows["obs"][:-1].sum(-1) % 2)
        assert (block["version"][:-1] == 3).all()


def test_final_observation_is_a_row_of_its_own_that_is_not_valid():
    (blocks,) = Rollout(rollout=5, sets=((0,),), envs=1).blocks(1)
    block = blocks[0]
    assert block["obs"][:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1]
    assert block["valid"][:, 0].tolist() == [True, True, True, False, True, True]
    assert block["first"][:, 0].tolist() == [True, False, False, False, True, False]
    assert block["terminated"][:5, 0].tolist() == [False, False, True, False, False]
    assert block["reward"][:5, 0].tolist() == [0, 1, 2, 0, 0]


@pytest.mark.parametrize("rollout", [1, 2, 3, 4, 7])
def test_last_row_is_the_first_of_the_next_block(rollout):
    (blocks,) = Rollout(rollout=rollout, sets=((0, 1),)).blocks(6)
    for block, following in itertools.pairwise(blocks):
        for name in ("obs", "first", "valid", "acting"):
            np.testing.assert_array_equal(block[name][-1], following[name][0], err_msg=name)


@pytest.mark.parametrize("rollout", [1, 2, 3, 4, 7])
def test_head_stitches_blocks_without_a_gap(rollout):
    (blocks,) = Rollout(rollout=rollout, sets=((0, 1),)).blocks(6)
    for block in blocks:
        np.testing.assert_array_equal(block["lane"], [20, 21, 22, 23])  # env * agents + agent
        np.testing.assert_array_equal(block["step"], block["obs"][0, :, 0])
        np.testing.assert_array_equal(block["episode"], block["obs"][0, :, 1])
    for block, following in itertools.pairwise(blocks):
        starts = block["first"][1:].sum(0)
        np.testing.assert_array_equal(following["episode"], block["episode"] + starts)
        going_on = starts == 0
        np.testing.assert_array_equal(
            following["step"][going_on], block["step"][going_on] + rollout
        )


def test_two_routes_give_the_same_data_as_one():
    (whole,) = Rollout(rollout=4, sets=((0, 1, 2),)).blocks(5)
    routes = Rollout(rollout=4, sets=((2, 0), (1,))).blocks(5)
    for number, block in enumerate(whole):
        for members, blocks in zip(((2, 0), (1,)), routes, strict=True):
            lanes = [env * 3 + agent for env in range(2) for agent in members]
            part = blocks[number]
            np.testing.assert_array_equal(part["lane"], block["lane"][lanes])
            for name in ("obs", "first", "valid", "acting"):
                np.testing.assert_array_equal(part[name], block[name][:, lanes], err_msg=name)
            for name in ("reward", "terminated", "truncated", "action", "mark", "version"):
                np.testing.assert_array_equal(
                    part[name][:-1], block[name][:-1, lanes], err_msg=name
                )


def test_groups_of_a_ring_are_independent():
    made = Rollout(rollout=4, sets=((0,),), groups=3)
    (blocks,) = made.blocks(9)
    for group in range(3):
        envs = [FIRST_ENV + 2 * group, FIRST_ENV + 2 * group + 1]
        mine = [b for b in blocks if b["lane"][0] == envs[0]]
        assert len(mine) == 3
        for number, block in enumerate(mine):
            rows = expected_rows(number * 4, 5, envs, [0])
            np.testing.assert_array_equal(block["obs"], rows["obs"])


def test_actor_without_credit_waits_and_says_for_what():
    made = Rollout(rollout=2, sets=((0,),))
    made.actor.open()
    assert not made.actor.step()
    assert made.actor.waiting == "wait_for_credit"
    made.streams[0].consumer().grant({0: 1}, 0)
    assert made.actor.step()
    made.actor.close()


def test_counters_and_episodes_are_exact():
    made = Rollout(rollout=4, sets=((0, 1),))
    made.blocks(3)  # 12 rows: three whole episodes of 3 steps and a final row
    telemetry = made.actor.telemetry
    assert telemetry.counters["env_steps"] == 2 * 9
    assert telemetry.counters["agent_steps"] == 2 * 2 * 9
    episodes = telemetry.take_episodes()
    assert len(episodes) == 2 * 2 * 3
    assert set(episodes) == {(3.0, 3, "main")}  # 0 + 1 + 2
    assert telemetry.take_episodes() == []


@pytest.mark.parametrize("interrupted_after", range(1, 12))
def test_saved_and_loaded_actor_goes_on_with_the_same_rows(interrupted_after):
    (expected,) = Rollout(rollout=3, sets=((0, 1),)).blocks(6)
    first = Rollout(rollout=3, sets=((0, 1),))
    first.streams[0].consumer().grant({0: 6}, 0)
    first.actor.open()
    got = []

    def drain(made):
        consumer = made.streams[0].consumer()
        for delivery in consumer.recv(100):
            got.append({name: array.copy() for name, array in delivery.block.fields.items()})
            consumer.take(delivery, dropped=False)

    for _ in range(interrupted_after):
        first.actor.step()
        drain(first)
    second = Rollout(rollout=3, sets=((0, 1),))
    second.streams[0].load(first.streams[0].save())
    second.actor.load(first.actor.save())
    second.actor.open()
    while len(got) < 6:
        assert second.actor.step()
        drain(second)
    for block, wanted in zip(got, expected, strict=True):
        for name in ("obs", "first", "valid", "lane", "episode", "step"):
            np.testing.assert_array_equal(block[name], wanted[name], err_msg=name)
        for name in ("reward", "terminated", "action", "version"):
            np.testing.assert_array_equal(block[name][:-1], wanted[name][:-1], err_msg=name)
