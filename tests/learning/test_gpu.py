"""Blocks and requests on a host with a GPU: the same values as on the host, by other ways."""

import numpy as np
import pytest
import torch

from srl.core.algorithm import Records
from srl.core.block import Block, input_names, route_layout
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.spec import Spec
from srl.core.streams import Request
from srl.transport.arena import Arena
from srl.workers.policy import HostGather

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
AGENT = AgentSpec(
    (Observation("obs", (20, 20), "uint8", stack=4), Observation("small", (3,), "float32")),
    Discrete(2),
)
RECORDS = Records(Spec((AGENT.action.field,)))
LAYOUT = route_layout(AGENT, RECORDS, rollout=6, lanes=5, envs=5)


@pytest.fixture
def blocks():
    from srl.learning.gpu import register, unregister, use

    use("cuda")
    arena = Arena.create("test", 3 * LAYOUT.nbytes)
    register(arena.buffer)
    rng = np.random.default_rng(0)
    made = []
    for i in range(3):
        block = Block(LAYOUT, arena.buffer[i * LAYOUT.nbytes :])
        block.buffer[:] = rng.integers(0, 2, block.buffer.shape)
        block["obs"][:] = rng.integers(0, 256, block["obs"].shape)
        block["small"][:] = rng.normal(size=block["small"].shape)
        block["first"][:] = rng.random(block["first"].shape) < 0.3
        block["step"][:] = rng.integers(0, 5, block["step"].shape)
        made.append(block)
    yield made
    unregister(arena.buffer)


def test_gathered_on_the_gpu_is_what_is_gathered_on_the_host(blocks):
    from srl.learning.gpu import GpuGather

    names = input_names(AGENT, RECORDS)
    gather = GpuGather("cuda")
    for row in range(6):
        requests = [Request(0, 0, 1, 0, b.shown(names, row), None) for b in blocks[: row % 3 + 1]]
        there, here = gather(requests), HostGather()(requests)
        assert there.keys() == here.keys()
        assert isinstance(there["obs"], torch.Tensor)
        assert isinstance(there["small"], np.ndarray)
        for name, array in here.items():
            shown = torch.as_tensor(there[name]).cpu().numpy().reshape(array.shape)
            np.testing.assert_array_equal(shown, array)


def test_the_next_batch_may_arrive_while_one_is_computed(blocks):
    from srl.learning.gpu import GpuGather

    names = input_names(AGENT, RECORDS)
    gather = GpuGather("cuda")
    work = torch.rand(4096, 4096, device="cuda")
    taken, wanted = [], []
    for row in range(60):
        requests = [Request(0, 0, 1, 0, b.shown(names, row % 6), None) for b in blocks]
        shown = gather(requests)["obs"]
        for _ in range(4):  # the GPU is behind the host by now, as it is with a large network
            work = work @ work * 1e-3
        taken.append(shown.clone())
        wanted.append(HostGather()(requests)["obs"])
    for there, here in zip(taken, wanted, strict=True):
        np.testing.assert_array_equal(there.cpu().numpy().reshape(here.shape), here)


def test_a_batch_on_the_gpu_holds_what_the_blocks_hold(blocks):
    from srl.learning.gpu import GpuMemory

    memory = GpuMemory("cuda")
    field = LAYOUT.spec["obs"]
    rows, lanes, *shape = LAYOUT.shape_of(field)
    batch = memory.zeros(field, (rows, 3 * lanes, *shape))
    assert batch.device.type == "cuda"
    for i, block in enumerate(blocks):
        memory.copy(batch[:, i * lanes : (i + 1) * lanes], block["obs"])
    memory.wait()
    whole = np.concatenate([block["obs"] for block in blocks], axis=1)
    np.testing.assert_array_equal(batch.cpu().numpy(), whole)
    assert isinstance(memory.zeros(LAYOUT.spec["reward"], (7, 5)), np.ndarray)


def test_number_that_is_not_finite_is_found_on_the_gpu(tmp_path):
    from srl.learning.finite import Tracer
    from srl.learning.gpu import GpuMemory, use
    from srl.learning.guard import Guard, read_batch

    use("cuda")
    agent = AgentSpec((Observation("obs", (100,), "float32"),), Discrete(2))
    layout = route_layout(agent, RECORDS, rollout=6, lanes=5, envs=5)
    memory = GpuMemory("cuda")
    batch = {field.name: memory.zeros(field, layout.shape_of(field)) for field in layout.spec}
    assert isinstance(batch["obs"], torch.Tensor)
    batch["valid"][:] = True
    batch["lane"][:] = range(5)
    (tmp_path / "errors").mkdir()
    guard = Guard(Tracer(layout), worker="trainer-0", folder=tmp_path)
    assert guard.before(batch) is None
    batch["obs"][3, 2, 40] = torch.inf
    fault = guard.before(batch)
    assert fault is not None
    assert "env 2 showed obs[40] = inf in step 3 of episode 0" in fault.words
    guard.report(fault, batch, 0)
    (path,) = (tmp_path / "errors").iterdir()
    np.testing.assert_array_equal(read_batch(path)[0]["obs"], batch["obs"].cpu().numpy())
    batch["valid"][3, 2] = False
    assert guard.before(batch) is None
