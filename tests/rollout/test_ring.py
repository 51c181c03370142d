import numpy as np

from srl.core.block import Layout, route_spec
from srl.core.env import EnvRequest
from srl.envs.toy import Counter
from srl.rollout.lanes import RouteEnds
from srl.rollout.ring import Group
from srl.streams.inference.inline import InlineInference
from srl.streams.parameters.inline import InlineParameters
from srl.streams.samples.inline import InlineSamples
from srl.testing.fakes import FakePolicy
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes

AGENT = Counter().agent
SETS = ((0,), (1,))


def make_group(**rewards):
    parameters = InlineParameters()
    parameters.publish({"weight": np.float32(0)}, 0)
    streams, routes = [], []
    for members in SETS:
        policy = FakePolicy(AGENT)
        layout = Layout(route_spec(AGENT, policy.records), 8, 2, 2)
        buffer = Arena.heap(block_arena_bytes(layout, 1, 2)).buffer
        streams.append(InlineSamples(BlockArena(buffer, layout, 1, 2)))
        inference = InlineInference(policy, parameters, ("obs", "first"))
        routes.append(
            RouteEnds(
                AGENT,
                members,
                layout,
                streams[-1].producer(0),
                inference,
                policy.records,
                **rewards,
            )
        )
    env = Counter.make_batch(
        EnvRequest(
            name="counter",
            options={"agents": 2},
            wrappers=(),
            num_envs=2,
            seed=0,
            first_env=0,
            reseed="episode",
            sets=SETS,
        )
    )
    return Group(0, env, routes, 0), streams


def test_group_begins_only_when_every_route_lets_it():
    group, (one, two) = make_group()
    group.reset()
    assert not group.begin()
    one.consumer().grant({0: 1}, 0)
    assert not group.begin()
    assert not group.begin()  # the block of the first route is kept, not asked for again
    assert one.started[0] == 1
    two.consumer().grant({0: 1}, 0)
    assert group.begin()
    assert group.unanswered == 2
    assert not group.parked


def test_group_whose_env_does_not_come_back_starts_over_and_gives_its_blocks_back():
    group, (one, two) = make_group()
    group.reset()
    for stream in (one, two):
        stream.consumer().grant({0: 3}, 0)
    group.begin()
    group.step()
    group.observe()
    state = group.save()
    again, streams = make_group()
    for stream, old in zip(streams, (one, two), strict=True):
        stream.load(old.save())
    state["env.state"] = np.zeros((7, 7), np.float32)  # of another env
    assert not again.load(state)
    assert [int(s.abandoned[0]) for s in streams] == [1, 1]
    assert again.parked
    assert again.begin()
    assert [lanes.block["first"][0].all() for lanes in again.lanes] == [True, True]
    assert [lanes.block["obs"][0, 0, 0] for lanes in again.lanes] == [0, 0]


def test_rewards_in_rows_are_scaled_and_clipped_and_returns_are_raw():
    group, streams = make_group(scale_rewards=0.5, clip_rewards=1.25)
    group.reset()
    for stream in streams:
        stream.consumer().grant({0: 1}, 0)
    assert group.begin()
    finished = []
    for _ in range(6):
        group.step()
        finished += group.observe()
    rewards = [lanes.block["reward"][:6, 0].tolist() for lanes in group.lanes]
    assert rewards == [[0, 0.5, 1, 1.25, 1.25, 0]] * 2  # of 0, 1, 2, 3, 4 and a reset step
    assert [episode.agent_return for episode in finished] == [10] * 4


def test_lane_ids_are_those_of_the_run():
    group, _ = make_group()
    assert [lanes.carry["lane"].tolist() for lanes in group.lanes] == [[0, 2], [1, 3]]
