"""How fast a replay buffer draws; results into replay.json.

    python benchmarks/replay.py [PART ...]

- prioritised: draws of 1,024 windows from 1e5 to 1e7 of them, and new priorities for these;
- mapped: windows of Atari frames (n-step 3, stack 4) drawn into batches from 4 GB in a mapped file, all of it in the
  page cache, and from memory;
- atari: what a million transitions of Atari take: a prioritised buffer is filled with them.

Times are medians of many, with the lowest and the highest. Only the parts named are measured anew.
"""

import argparse
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
from srl.telemetry.memory import own_megabytes
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


def atari() -> dict[str, Any]:
    layout = layout_of(Observation("obs", (84, 84), "uint8", stack=4), rollout=32, lanes=16)
    rows, before = 1_000_000, own_megabytes()
    config = ReplayConfig(kind="prioritised", capacity=rows, batch=256, warm_up=0)
    replay = Replay(config, Window(ahead=3), layout, groups=1, seed=0)
    fill(replay, layout, rows, np.random.default_rng(0))
    after = own_megabytes()
    assert before is not None
    assert after is not None
    planned = table_bytes(layout, 16, rows_of_track(rows, 16, 32))
    return {"rows": replay.size, "planned_gb": planned / 1e9, "grown_gb": (after - before) / 1e3}


PARTS: dict[str, Callable[[], Any]] = {
    "prioritised": lambda: [prioritised(rows) for rows in SIZES],
    "mapped": lambda: [frames("file"), frames("memory")],
    "atari": atari,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    file = HERE / "replay.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for part in parser.parse_args().parts or PARTS:
        result[part] = {"host": host(), "found": PARTS[part]()}
        file.write_text(json.dumps(result, indent=1) + "\n")
    for row in result["prioritised"]["found"]:
        times = {k: round(row[k]["median"], 3) for k in ("choose_ms", "draw_ms", "update_ms")}
        print(row["items"], times)
    for row in result["mapped"]["found"]:
        print(row["storage"], round(row["gb_per_second"], 2), "GB/s")
    print(f"{result['atari']['found']['grown_gb']:.2f} GB for a million Atari transitions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
