"""What a row costs in things that can be counted: a change that makes one of them grow fails here.

Counted, in one process and so always alike, for a group step (all rows that one call of an env
fills) in two runs, inline and over shared memory:

    python_calls   calls of Python functions of the data path itself (not of env, policy, learner)
    copies         calls of `np.copyto`, which is how the data path copies, and their bytes
    messages       sent over ZeroMQ, by kind; greetings and credit, which depend on time, are not
    read_write     system calls `read` and `write` (inline; of this thread, from /proc). Those of ZeroMQ's own
                   thread depend on time: there, `messages` stands for them

`counts.json` holds what is accepted. A change that is worth its price is accepted by

    SRL_ACCEPT_COUNTS=1 pytest tests/test_counts.py

and the commit says why. Numbers that fall are to be accepted in the same way, so that they stay so.
"""

import json
import os
import shutil
import sys
import tempfile
from collections import Counter as Counts
from pathlib import Path

import numpy as np
import pytest
import zmq

import srl
from srl.core.block import Layout, route_spec
from srl.core.env import EnvRequest
from srl.envs.toy import Counter
from srl.learning.staging import Staging
from srl.learning.staleness import Gate
from srl.rollout.lanes import RouteEnds
from srl.streams.inference.inline import InlineInference
from srl.streams.inference.shm import ReplyLayout, ShmInferenceClient, ShmInferenceServer
from srl.streams.parameters.inline import InlineParameters
from srl.streams.samples.inline import InlineSamples
from srl.streams.samples.shm import ShmConsumer, ShmProducer
from srl.testing.fakes import FakeLearner, FakePolicy
from srl.testing.stream_contract import eventually
from srl.transport import sockets
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.transport.codec import Kind
from srl.workers.actor import Actor
from srl.workers.policy import PolicyWorker
from srl.workers.trainer import Trainer

ACCEPTED = Path(__file__).with_name("counts.json")
AGENT = Counter().agent
ROLLOUT, GROUPS, BATCH, BATCHES, SLOTS = 20, 2, 2, 5, 5
GROUP_STEPS = ROLLOUT * BATCH * BATCHES
ROOT = Path(srl.__file__).parent
OURS = tuple(f"{ROOT / part}{os.sep}" for part in ("core", "rollout", "streams", "transport"))
OURS += tuple(f"{ROOT / part}{os.sep}" for part in ("learning", "workers"))
IO = Path("/proc/thread-self/io")


class Tally:
    """Counts while it is entered."""

    def __init__(self, monkeypatch):
        self.calls, self.copies, self.bytes, self.read_write = 0, 0, 0, 0
        self.messages = Counts()
        copy = np.copyto

        def counted_copy(target, source, **options):
            self.copies += 1
            self.bytes += target.nbytes
            copy(target, source, **options)

        def counted(send, place):
            def counted_send(*args):
                self.messages[args[place].kind] += 1
                return send(*args)

            return counted_send

        monkeypatch.setattr(np, "copyto", counted_copy)
        for kind, place in ((sockets.Client, 1), (sockets.Server, 2)):
            monkeypatch.setattr(kind, "send", counted(kind.send, place))

    def __enter__(self):
        self._before = _reads_and_writes()
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        self.read_write += _reads_and_writes() - self._before

    def _on_event(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.calls += 1


def _reads_and_writes():
    """System calls so far; the one that reads this is left out."""
    if not IO.exists():
        return 0
    values = dict(line.split(": ") for line in IO.read_text().splitlines())
    _reads_and_writes.own += 2  # a file is read until it ends
    return int(values["syscr"]) + int(values["syscw"]) - _reads_and_writes.own


_reads_and_writes.own = 0


def make_layout(envs):
    return Layout(route_spec(AGENT, FakePolicy(AGENT).records), ROLLOUT + 1, envs, envs)


def make_actor(envs, producer, inference):
    options = {"length": 7, "agents": 1}
    request = EnvRequest(
        name="counter",
        options=options,
        wrappers=(),
        num_envs=envs,
        seed=0,
        first_env=0,
        reseed="episode",
    )
    made = [Counter.make_batch(request) for _ in range(GROUPS)]
    records = FakePolicy(AGENT).records
    ends = RouteEnds(AGENT, (0,), make_layout(envs), producer, inference, records)
    return Actor("actor-0", made, [ends], first_env=0)


def make_trainer(envs, consumer, parameters):
    gate = Gate(num_producers=1, batch=BATCH, max_staleness=0)
    staging = Staging(consumer, gate, make_layout(envs), burn_in=0)
    learner = FakeLearner(FakePolicy(AGENT))
    return Trainer("trainer-0", learner, staging, parameters, total_env_steps=None)


def count_inline(monkeypatch, envs):
    """Inline: every step does something, so all calls are counted."""
    layout = make_layout(envs)
    buffer = Arena.heap(block_arena_bytes(layout, 1, SLOTS)).buffer
    stream, parameters = InlineSamples(BlockArena(buffer, layout, 1, SLOTS)), InlineParameters()
    client = InlineInference(FakePolicy(AGENT), parameters, ("obs", "first"))
    actor = make_actor(envs, stream.producer(0), client)
    trainer = make_trainer(envs, stream.consumer(), parameters)
    trainer.open()
    actor.open()

    def learn(versions):
        while trainer.version < versions:
            actor.step()
            trainer.step()

    learn(3)  # what is made once has been made
    with Tally(monkeypatch) as tally:
        learn(3 + BATCHES)
    return {
        "python_calls": tally.calls / GROUP_STEPS,
        "copies": tally.copies / GROUP_STEPS,
        "bytes_a_row": tally.bytes / GROUP_STEPS / envs,
        "read_write": tally.read_write / GROUP_STEPS,
    }


def count_shm(monkeypatch, envs):
    """Over shared memory; how often nothing has come yet depends on time, so calls are not counted."""
    folder, context = tempfile.mkdtemp(prefix="srl-", dir="/tmp"), zmq.Context()
    layout = make_layout(envs)
    arena = Arena.create("blocks", block_arena_bytes(layout, 1, SLOTS))
    replies = ReplyLayout(FakePolicy(AGENT).records.outputs, 1, GROUPS, envs)
    slab = Arena.create("replies", replies.nbytes)
    digest, parameters = layout.spec.digest(), InlineParameters()
    blocks = BlockArena(arena.buffer, layout, 1, SLOTS)
    samples, inference = f"ipc://{folder}/samples", f"ipc://{folder}/inference"
    consumer = ShmConsumer(blocks, samples, context=context)
    producer = ShmProducer(blocks, samples, index=0, incarnation=0, context=context)
    common = {"digest": digest, "incarnation": 0, "context": context}
    server = ShmInferenceServer(
        {0: (blocks, 0)}, replies, slab.buffer, inference, inputs=("obs", "first"), **common
    )
    client = ShmInferenceClient(
        replies,
        [slab.buffer],
        [inference],
        index=0,
        num_slots=SLOTS,
        resend_seconds=1000,
        **common,
    )
    actor, trainer = make_actor(envs, producer, client), make_trainer(envs, consumer, parameters)
    policy = PolicyWorker("policy-0", FakePolicy(AGENT), server, parameters)

    def learned(versions):
        for worker in (actor, policy, trainer):
            worker.step()
        return trainer.version >= versions

    trainer.open()
    actor.open()
    try:
        eventually(lambda: learned(3), "the first batches")
        tally = Tally(monkeypatch)
        eventually(lambda: learned(3 + BATCHES), "the last batch")
    finally:
        for worker in (actor, policy, trainer):
            worker.close()
        context.destroy(linger=0)
        arena.close()
        slab.close()
        shutil.rmtree(folder)
    kinds = {Kind.REQUEST: "requests", Kind.REPLY: "replies", Kind.BLOCK: "blocks"}
    counts = {f"messages_{kinds[k]}": tally.messages[k] / GROUP_STEPS for k in kinds}
    return {
        **counts,
        "copies": tally.copies / GROUP_STEPS,
        "bytes_a_row": tally.bytes / GROUP_STEPS / envs,
    }


RUNS = {"inline": count_inline, "shm": count_shm}


@pytest.mark.parametrize("run", RUNS)
def test_no_count_grows(monkeypatch, run):
    found = {k: round(v, 3) for k, v in RUNS[run](monkeypatch, 16).items()}
    accepted = json.loads(ACCEPTED.read_text()) if ACCEPTED.exists() else {}
    if os.environ.get("SRL_ACCEPT_COUNTS"):
        accepted[run] = found
        ACCEPTED.write_text(json.dumps(accepted, indent=2, sort_keys=True) + "\n")
    grown = {k: (accepted[run][k], v) for k, v in found.items() if v > accepted[run][k]}
    assert not grown, (
        f"{run}: these counts a group step have grown (accepted, found): {grown}; if the change is "
        "worth it, accept them as tests/test_counts.py says"
    )


def test_calls_and_copies_do_not_depend_on_the_number_of_lanes(monkeypatch):
    few, many = count_inline(monkeypatch, 2), count_inline(monkeypatch, 64)
    for name in ("python_calls", "copies", "read_write"):
        assert few[name] == many[name], name
    assert many["bytes_a_row"] == pytest.approx(few["bytes_a_row"])


def test_counting_sees_calls_copies_and_messages(monkeypatch):
    context, sent = zmq.Context(), np.zeros(3)
    tally = Tally(monkeypatch)
    client = sockets.Client(context, "inproc://nobody")
    with tally:
        np.copyto(np.ones(3), sent)
        client.send(sockets.Header(Kind.BLOCK, 0, 0, 0))
    client.close()
    context.destroy(linger=0)
    assert (tally.copies, tally.bytes, tally.messages[Kind.BLOCK]) == (1, 24, 1)
    assert tally.calls == 3  # send, _send and pack
