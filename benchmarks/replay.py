"""How fast a replay buffer draws; results into replay.json.

    python benchmarks/replay.py

- prioritised: draws of 1,024 windows from 1e5 to 1e7 of them, and new priorities for these;
- mapped: windows of Atari frames (n-step 3, stack 4) drawn into batches from 4 GB in a mapped file, all of it in the
  page cache, and from memory;
- atari: what a million transitions of Atari take.

Every number is the median of many, with the lowest and the highest.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from srl.core.algorithm import Records
from srl.core.block import Block, Layout, route_layout
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.replay import ReplayConfig, Window
from srl.core.spec import Field, Spec
from srl.learning.replay.replay import Replay
from srl.learning.replay.table import rows_of_track, table_bytes
from srl.learning.staging import HostMemory, allocate
from srl.tools.bench.report import host

HERE = Path(__file__).parent
SIZES = (100_000, 300_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000)
DRAWN = 1024
TIMES = 60
FRAMES_BYTES = 4_000_000_000


def layout_of(observation: Observation, *, rollout: int, lanes: int) -> Layout:
    agent = AgentSpec((observation,), Discrete(6))
    records = Records(Spec((Field("action", (), "int64"),)))
    return route_layout(agent, records, rollout=rollout, lanes=lanes, envs=lanes)


def fill(replay: Replay, layout: Layout, rows: int, rng: np.random.Generator) -> None:
    """Blocks of one long episode a lane."""
    block, step = Block.allocate(layout), 0
    block["valid"][:] = block["acting"][:] = True
    block["lane"][:] = np.arange(layout.lanes)
    for name in ("obs", "reward"):
        array = block[name]
        array[...] = (
            rng.integers(256, size=array.shape) if name == "obs" else rng.normal(size=array.shape)
        )
    rollout = layout.rows - 1
    while replay.size < rows:
        block["step"][:] = step
        replay.insert(block)
        step += rollout
        replay.limiter.drawn = 0


def measured(action: Callable[[], Any], times: int) -> dict[str, float]:
    """Milliseconds of one call."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        found.append((time.perf_counter() - start) * 1e3)
    return {"median": statistics.median(found), "lowest": min(found), "highest": max(found)}


def prioritised(rows: int) -> dict[str, Any]:
    layout = layout_of(Observation("obs", (4,), "float32"), rollout=50, lanes=20)
    config = ReplayConfig(kind="prioritised", capacity=rows, batch=DRAWN, warm_up=0)
    replay = Replay(config, Window(), layout, groups=1, seed=0)
    rng = np.random.default_rng(0)
    fill(replay, layout, rows, rng)
    out = allocate(replay.layout, HostMemory())
    selector = replay._selector

    def draw() -> None:
        replay.limiter.drawn = 0
        assert replay.draw(out)

    def update() -> None:
        replay.update(out["item"], rng.random(DRAWN))

    for _ in range(20):  # with priorities that differ
        draw()
        update()
    return {
        "items": rows,
        "choose_ms": measured(lambda: selector.draw(DRAWN, rng), TIMES),
        "draw_ms": measured(draw, TIMES),
        "update_ms": measured(update, TIMES),
    }


def frames(storage: str) -> dict[str, Any]:
    layout = layout_of(Observation("obs", (84, 84), "uint8", stack=4), rollout=64, lanes=16)
    rows = FRAMES_BYTES // (84 * 84)
    window = Window(ahead=3)
    config = ReplayConfig(capacity=rows, batch=256, warm_up=0, storage=storage)  # pyright: ignore[reportArgumentType]
    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        replay = Replay(config, window, layout, groups=1, seed=0, folder=Path(folder))
        fill(replay, layout, rows, np.random.default_rng(0))
        out = allocate(replay.layout, HostMemory())
        num_bytes = sum(array.nbytes for array in out.values())

        def draw() -> None:
            replay.limiter.drawn = 0
            assert replay.draw(out)

        for _ in range(20):
            draw()
        found = measured(draw, TIMES)
    return {
        "storage": storage,
        "rows": rows,
        "bytes_a_draw": num_bytes,
        "draw_ms": found,
        "gb_per_second": num_bytes / found["median"] / 1e6,
    }


def main() -> int:
    layout = layout_of(Observation("obs", (84, 84), "uint8", stack=4), rollout=32, lanes=16)
    million = table_bytes(layout, 16, rows_of_track(1_000_000, 16, 32))
    result = {
        "host": host(),
        "prioritised": [prioritised(rows) for rows in SIZES],
        "frames": [frames("file"), frames("memory")],
        "million_atari_transitions_bytes": million,
    }
    (HERE / "replay.json").write_text(json.dumps(result, indent=1) + "\n")
    for row in result["prioritised"]:
        print(
            row["items"],
            {k: round(row[k]["median"], 3) for k in ("choose_ms", "draw_ms", "update_ms")},
        )
    for row in result["frames"]:
        print(row["storage"], round(row["gb_per_second"], 2), "GB/s")
    print(f"{million / 1e9:.2f} GB for a million Atari transitions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
