import time

import numpy as np
import pytest

from srl.core.algorithm import Records
from srl.core.block import Block, route_layout
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import StreamError
from srl.core.spec import Spec
from srl.core.streams import Request
from srl.streams.parameters.inline import InlineParameters
from srl.testing.fakes import FakePolicy
from srl.workers.policy import HostGather, PolicyWorker

AGENT = AgentSpec((Observation("obs", (2,), "float32"),), Discrete(2))


class FakeServer:
    """Hands out what was put in `arrived`, and keeps the answers."""

    def __init__(self):
        self.arrived, self.answers, self.closed = [], [], 0

    def ask(self, client, group, values, min_version=0):
        obs = np.repeat(np.array(values, np.float32)[:, None], 2, axis=1)
        obs.flags.writeable = False
        inputs = {"obs": obs, "first": np.zeros(len(values), bool)}
        self.arrived.append(Request(client, group, 1, min_version, inputs, None))

    def recv(self):
        arrived, self.arrived = self.arrived, []
        return arrived

    def reply(self, request, outputs, version):
        copied = {name: array.copy() for name, array in outputs.items()}
        self.answers.append((request.client, request.group, copied, version))

    def pollables(self):
        return ("socket",)

    def close(self):
        self.closed += 1


@pytest.fixture
def made():
    server, parameters, policy = FakeServer(), InlineParameters(), FakePolicy(AGENT)
    parameters.publish({"weight": np.float32(0)}, 0)
    return PolicyWorker("policy-0", policy, server, parameters), server, parameters, policy


def test_everything_ready_is_one_batch_and_each_client_gets_its_own_rows(made):
    worker, server, _, policy = made
    server.ask(0, 0, [1, 2, 3])
    server.ask(4, 1, [10])
    server.ask(0, 1, [20, 30])
    assert worker.step()
    assert policy.batches == [6]
    marks = {(c, g): outputs["mark"].tolist() for c, g, outputs, _ in server.answers}
    assert marks == {(0, 0): [2, 4, 6], (4, 1): [20], (0, 1): [40, 60]}
    assert worker.telemetry.counters == {"fetches": 1, "batches": 1, "requests": 3}


def test_nothing_ready_is_nothing_done(made):
    worker, server, *_ = made
    assert not worker.step()
    assert server.answers == []
    assert worker.pollables() == ("socket",)


def test_larger_and_smaller_batches_follow_each_other(made):
    worker, server, _, policy = made
    for size in (1, 5, 2, 40, 3):
        server.ask(0, 0, list(range(size)))
        worker.step()
        assert server.answers[-1][2]["mark"].tolist() == [2 * n for n in range(size)]
    assert policy.batches == [1, 5, 2, 40, 3]


def test_answers_carry_the_version_they_were_given_by(made):
    worker, server, parameters, _ = made
    server.ask(0, 0, [1])
    worker.step()
    parameters.publish({"weight": np.float32(100)}, 7)
    server.ask(0, 0, [1], min_version=7)
    worker.step()
    assert [(a[2]["mark"].tolist(), a[3]) for a in server.answers] == [([2], 0), ([102], 7)]


def test_weights_are_fetched_only_when_they_changed(made):
    worker, server, *_ = made
    for _ in range(3):
        server.ask(0, 0, [1])
        worker.step()
    assert worker.telemetry.counters["fetches"] == 1


def test_version_that_is_not_published_is_an_error(made):
    worker, server, *_ = made
    server.ask(0, 0, [1], min_version=2)
    with pytest.raises(StreamError, match="version 2 was asked for, but only 0"):
        worker.step()


def test_save_load_and_close(made):
    worker, server, *_ = made
    worker.open()
    worker.load(worker.save())
    worker.close()
    assert server.closed == 1


def test_stacks_of_several_requests_are_written_once_each_into_one_batch():
    agent = AgentSpec((Observation("obs", (2,), "uint8", stack=3),), Discrete(2))
    layout = route_layout(agent, Records(Spec((agent.action.field,))), rollout=4, lanes=2, envs=2)
    blocks, requests = [], []
    for start in (1, 100):
        block = Block.allocate(layout)
        block["obs"][:] = np.arange(start, start + 7)[:, None, None]
        block["first"][2, 1] = True
        block["step"][:] = 9
        blocks.append(block)
        requests.append(Request(0, 0, 1, 0, block.shown(["obs", "first"], 2), None))
    gather = HostGather()
    batch = gather(requests)
    assert batch["obs"][:, :, 0].tolist() == [[3, 4, 5], [0, 0, 5], [102, 103, 104], [0, 0, 104]]
    assert batch["first"].tolist() == [False, True] * 2
    again = gather(requests)
    assert np.shares_memory(again["obs"], batch["obs"])
    assert [block["obs"][0, 0, 0] for block in blocks] == [1, 100]


class AheadPolicy(FakePolicy):
    """One that is told when to have computed."""

    ahead = 1

    def __init__(self, agent):
        super().__init__(agent)
        self.log, self.is_done = [], False

    def begin(self, inputs):
        outputs = {name: array.copy() for name, array in self.act(inputs).items()}
        number = len(self.batches)
        self.log.append(f"begin {number}")
        return Later(self, number, outputs)


class Later:
    def __init__(self, policy, number, arrays):
        self.policy, self.number, self.arrays = policy, number, arrays

    def is_ready(self):
        return self.policy.is_done

    def outputs(self):
        self.policy.log.append(f"wait {self.number}")
        return self.arrays


def test_the_next_batch_is_begun_before_the_last_is_waited_for():
    server, parameters, policy = FakeServer(), InlineParameters(), AheadPolicy(AGENT)
    parameters.publish({"weight": np.float32(0)}, 0)
    worker = PolicyWorker("policy-0", policy, server, parameters)
    server.ask(0, 0, [1])
    assert worker.step()
    assert worker.step()
    assert server.answers == []
    parameters.publish({"weight": np.float32(100)}, 1)
    server.ask(1, 0, [2])
    assert worker.step()
    assert policy.log == ["begin 1", "begin 2", "wait 1"]
    assert worker.step()
    assert policy.log[-1] == "wait 1"
    policy.is_done = True
    assert worker.step()
    assert policy.log[-1] == "wait 2"
    assert not worker.step()
    found = [(c, outputs["mark"].tolist(), version) for c, _, outputs, version in server.answers]
    assert found == [(0, [2.0], 0), (1, [104.0], 1)]


def test_worker_is_cut_off_by_one_request_that_waits_and_not_by_many_that_do_in_turn():
    server, parameters, policy = FakeServer(), InlineParameters(), FakePolicy(AGENT)
    parameters.publish({"weight": np.float32(0)}, 0)
    worker = PolicyWorker("policy-0", policy, server, parameters, patience_seconds=0.2)
    began = time.monotonic()
    version = 0
    while time.monotonic() - began < 0.5:  # weights are always one version behind
        server.ask(0, version % 2, [1], min_version=version + 1)
        worker.step()
        time.sleep(0.01)
        version += 1
        parameters.publish({"weight": np.float32(0)}, version)
    assert len(server.answers) >= 10
    server.ask(0, 0, [1], min_version=version + 2)
    with pytest.raises(StreamError, match="was asked for"):  # noqa: PT012 - it takes a while
        while time.monotonic() - began < 20:
            worker.step()
            time.sleep(0.01)
