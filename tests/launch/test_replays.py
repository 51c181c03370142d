"""Runs that learn from a replay buffer: what they promise beside learning, which `test_toys.py` shows."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import srl
from srl.api import find_experiment
from srl.core.errors import CheckpointError, ConfigError
from srl.core.names import load_object
from srl.core.replay import ReplayConfig
from srl.launch.graph.config import decode_experiment, encode_experiment
from srl.launch.graph.plan import make_plan
from srl.launch.graph.resuming import shape_of
from srl.launch.inspect import inspect
from srl.learning.checkpoint import latest_checkpoint, read_checkpoint

REPLAYS = Path(__file__).with_name("replays.py")
CHAIN = f"{REPLAYS}:chain"
IDENTITY = {
    "launcher": "inline",
    "actors__envs": 4,
    "actors__groups": 1,
    "stop__env_steps": 2000,
    "evaluation__episodes": 0,
}
LONG = ("--launcher", "local", "--stop.env-steps", "100000000")
PRIORITISED = {
    "replay": ReplayConfig(
        kind="prioritised", capacity=5000, batch=32, steps=4, warm_up=256, samples_per_insert=4
    )
}


def train(name: str, folder: Path, options: dict[str, Any] | None = None, **more: Any) -> srl.Run:
    experiment = load_object(f"{REPLAYS}:{name}")()
    experiment = replace(experiment, algorithm=replace(experiment.algorithm, **(options or {})))
    return srl.train(experiment, out=str(folder), seed=1, **more)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_masked_choices_are_learned(launcher: str, tmp_path: Path) -> None:
    run = train("masked", tmp_path / "run", launcher=launcher)
    assert run.summary["eval_return"] > 13  # a guess of those that are allowed gets about 6


@pytest.mark.parametrize(
    "inference", ["inline", pytest.param("shm", marks=pytest.mark.slow)], ids=str
)
def test_local_run_learns_and_its_books_are_in_order(
    inference: str, tmp_path: Path, assert_ledger_adds_up: Any
) -> None:
    options = {"launcher": "local", "inference": inference, "actors__count": 2}
    run = srl.train(CHAIN, out=str(tmp_path / "run"), actors__envs=4, **options)
    summary = run.summary
    assert summary["status"] == "completed"
    assert summary["eval_return"] == 1
    assert_ledger_adds_up(summary)
    assert summary["blocks_lost"] == summary["blocks_dropped"] == 0
    # four windows a row, less what the warm-up and either side's lead leave
    drawn = summary["version"] * 128
    rows = summary["env_steps"] + summary["episodes"]  # final observations are rows
    assert 0.5 * 4 * rows < drawn <= 4 * rows


@pytest.mark.parametrize(
    "options",
    [
        {"buffers__count": 1},
        pytest.param({"buffers__count": 2, "inference": "shm"}, marks=pytest.mark.slow),
        pytest.param({"buffers__count": 2, "samples": "tcp"}, marks=pytest.mark.slow),
        pytest.param({"buffers__count": 2, "trainers__count": 2}, marks=pytest.mark.slow),
    ],
    ids=["one", "two, asked over shm", "two, over tcp", "two, for two trainers"],
)
def test_buffers_keep_and_draw(
    options: dict[str, Any], tmp_path: Path, assert_ledger_adds_up: Any
) -> None:
    """By priorities, so that these go their way, too."""
    more = {"launcher": "local", "actors__count": 2, "actors__envs": 4}
    run = train("chain", tmp_path / "run", PRIORITISED, **more, **options)
    summary = run.summary
    assert summary["status"] == "completed"
    assert summary["eval_return"] == 1
    assert_ledger_adds_up(summary)
    assert summary["blocks_lost"] == summary["blocks_dropped"] == 0
    drawn = summary["version"] * 128
    rows = summary["env_steps"] + summary["episodes"]
    assert 0.5 * 4 * rows < drawn <= 4 * rows


@pytest.mark.parametrize(
    "options",
    [
        {"n_step": 20},
        {"memory": "lstm", "memory_size": 8, "chunk": 8, "burn_in": 16} | PRIORITISED,
    ],
    ids=["many steps", "a long burn-in"],
)
def test_windows_of_several_blocks_are_drawn(options: dict[str, Any], tmp_path: Path) -> None:
    more = {"actors__envs": 128, "actors__groups": 8, "stop__env_steps": 10_000}
    run = train("chain", tmp_path / "run", options, launcher="inline", stop__seconds=10, **more)
    assert run.summary["version"] > 0, "actors and learner wait for each other"


@pytest.mark.parametrize(
    ("killed", "buffers"),
    [
        pytest.param("trainer-0", 0, id="the trainer with the buffer", marks=pytest.mark.slow),
        pytest.param("actor-0", 2, id="a buffer's actor", marks=pytest.mark.slow),
        pytest.param("buffer-1", 2, id="a buffer"),
        pytest.param("trainer-0", 2, id="the trainer of two buffers", marks=pytest.mark.slow),
    ],
)
def test_run_goes_on_when_one_is_killed(
    killed: str, buffers: int, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    options = ("--actors.count", "2", "--buffers.count", str(buffers), "--checkpoint.seconds", "1")
    run = start_run(CHAIN, *LONG, *options)
    run.wait_for_rows(3)
    pid = run.pid_of(killed)
    os.kill(pid, signal.SIGKILL)
    run.wait_for_new_life(killed, pid)
    run.wait_for_rows(len(run.rows()) + 5)
    run.popen.send_signal(signal.SIGTERM)

    assert run.wait() == 0
    summary = run.summary
    assert summary["status"] == "interrupted"
    assert summary["worker_restarts"] == 1
    versions = [row["version"] for row in run.rows()]
    assert versions == sorted(set(versions))
    assert_ledger_adds_up(summary)
    run.assert_nothing_left()


def test_inline_run_whose_rows_are_not_saved_fills_its_buffer_anew(tmp_path: Path) -> None:
    options = {"replay": replace(PRIORITISED["replay"], saved=False)}
    run = train("chain", tmp_path / "run", options, launcher="inline", stop__env_steps=1000)
    resumed = srl.resume(run.folder, stop__env_steps=3000)
    assert resumed.summary["status"] == "completed"
    assert resumed.summary["version"] > run.summary["version"]
    lost = inspect(run.folder).partition("\nnot restored:\n")[2]
    assert "rows and priorities of replay buffers: they are filled anew" in lost


@pytest.mark.parametrize(
    "options",
    [
        {"launcher": "inline"},
        pytest.param({"launcher": "local", "buffers__count": 1}, marks=pytest.mark.slow),
    ],
    ids=["inline", "a buffer"],
)
def test_rows_are_learned_in_the_order_they_came(options: dict[str, Any], tmp_path: Path) -> None:
    rows = {"replay": replace(PRIORITISED["replay"], kind="fifo")}
    run = train("chain", tmp_path / "run", rows, **options)
    assert run.summary["eval_return"] == 1
    drawn = run.summary["version"] * 128
    assert drawn <= 4 * (run.summary["env_steps"] + run.summary["episodes"]), "four times each"
    resumed = srl.resume(run.folder, stop__env_steps=run.summary["env_steps"] + 1000)
    assert resumed.summary["version"] > run.summary["version"]


@pytest.mark.parametrize(
    "options",
    [
        {"launcher": "inline"},
        pytest.param({"launcher": "local", "buffers__count": 1}, marks=pytest.mark.slow),
    ],
    ids=["inline", "a buffer"],
)
def test_what_is_drawn_is_what_a_function_makes_of_it(
    options: dict[str, Any], tmp_path: Path
) -> None:
    rows = {"replay": replace(PRIORITISED["replay"], relabel=f"{REPLAYS}:pay_for_the_left")}
    run = train("chain", tmp_path / "run", rows, **options)
    assert run.summary["eval_return"] < 0.5, "nobody goes to the right, where the env pays 1"


def files_of(folder: Path) -> dict[str, bytes]:
    return {f"{f.relative_to(folder)}": f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"algorithm__replay__capacity": 9000},
            r"lanes of .* rows.* and this run .* of .*: resume",
        ),
        ({"algorithm__replay__kind": "prioritised"}, "a buffer of kind uniform"),
        ({"actors__envs": 4}, r"in blocks of 8 rows x 4 lanes.* of 8 x 2: resume"),
        ({"algorithm__ladder": 7}, "has state.ladder as not there, and this run as"),
        (
            {"launcher": "local", "buffers__count": 1},
            "rows of trainer-0, and this run would keep them in buffer-0: .*saved False",
        ),
    ],
    ids=["capacity", "kind", "envs", "what is recorded", "buffers"],
)
def test_rows_that_do_not_fit_are_refused_and_the_run_stays_as_it_was(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    run = train("chain", tmp_path / "run", launcher="inline", stop__env_steps=1000)
    before = files_of(run.folder)
    with pytest.raises(CheckpointError, match=words):
        srl.resume(run.folder, stop__env_steps=2000, **options)
    assert files_of(run.folder) == before

    anew = options | {"algorithm__replay__saved": False}
    resumed = srl.resume(run.folder, stop__env_steps=2000, **anew)
    assert resumed.summary["status"] == "completed"


def test_rows_with_states_at_other_places_are_refused(tmp_path: Path) -> None:
    memory = {"memory": "lstm", "memory_size": 8, "chunk": 8}
    more = {"launcher": "inline", "stop__env_steps": 1000}
    run = train("chain", tmp_path / "run", memory, **more)
    with pytest.raises(CheckpointError, match=r"has state\..* and this run as .*: resume with"):
        srl.resume(run.folder, stop__env_steps=2000, algorithm__chunk=4)


@pytest.mark.slow
def test_rows_of_lanes_that_go_elsewhere_are_refused(tmp_path: Path) -> None:
    more = {"launcher": "local", "buffers__count": 2, "stop__env_steps": 2000}
    actors = {"actors__count": 4, "actors__envs": 4, "actors__groups": 1}
    run = train("chain", tmp_path / "run", **more, **actors)
    actors = {"actors__count": 2, "actors__envs": 8, "actors__groups": 2}
    with pytest.raises(CheckpointError, match=r"rows of buffer-0 .* are of other lanes"):
        srl.resume(run.folder, **(more | {"stop__env_steps": 3000}), **actors)


def test_run_whose_checkpoint_cannot_be_taken_over_keeps_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train("chain", tmp_path / "run", launcher="inline", stop__env_steps=1000)
    before = (run.folder / "config.json").read_bytes()

    def start(*_: object) -> None:
        raise CheckpointError("of something else")

    with monkeypatch.context() as patched:
        patched.setattr("srl.launch.inline.InlineLauncher.start", start)
        with pytest.raises(CheckpointError, match="of something else"):
            srl.resume(run.folder, stop__env_steps=2000)
    assert (run.folder / "config.json").read_bytes() == before
    assert srl.resume(run.folder, stop__env_steps=2000).summary["status"] == "completed"


@pytest.mark.parametrize("launcher", ["inline", "ray"])
def test_resume_that_a_launcher_refuses_changes_nothing(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train("chain", tmp_path / "run", launcher="inline", stop__env_steps=1000)
    first = run.summary["version"]
    run = srl.resume(run.folder, stop__env_steps=2000)
    before = files_of(run.folder)

    def launch(*_: object) -> None:
        raise ConfigError("there is no room")

    name = "InlineLauncher" if launcher == "inline" else "RayLauncher"
    monkeypatch.setattr("srl.api.check_ray", lambda _: None)
    monkeypatch.setattr(f"srl.launch.controller.{name}", launch)
    with pytest.raises(ConfigError, match="there is no room"):
        srl.resume(
            run.folder, checkpoint=first, launcher=launcher, stop__env_steps=3000, max_staleness=2
        )
    assert files_of(run.folder) == before


def test_folder_that_rows_cannot_be_in_is_refused_before_anything_is_changed(
    tmp_path: Path,
) -> None:
    run = train("chain", tmp_path / "run", launcher="inline", stop__env_steps=1000)
    (tmp_path / "file").write_text("")
    before = files_of(run.folder)
    rows = {"algorithm__replay__storage": "file"}
    rows |= {"algorithm__replay__folder": str(tmp_path / "file" / "rows")}
    with pytest.raises(ConfigError, match=r"replay\.folder .*/file/rows cannot have the file"):
        srl.resume(run.folder, stop__env_steps=2000, **rows)
    assert files_of(run.folder) == before


def test_resume_asks_for_ray_before_anything_is_changed(tmp_path: Path) -> None:
    run = train("chain", tmp_path / "run", launcher="inline", stop__env_steps=1000)
    before = files_of(run.folder)
    with pytest.raises(ConfigError, match=r"no Ray cluster at --ray\.address 127\.0\.0\.1:9"):
        srl.resume(run.folder, launcher="ray", ray__address="127.0.0.1:9", stop__env_steps=2000)
    assert files_of(run.folder) == before


def test_blocks_of_another_shape_are_left_behind_whatever_the_config_says(tmp_path: Path) -> None:
    """A resume that had nothing to do has changed the config, but not the checkpoint."""
    run = srl.train("toy/identity", out=str(tmp_path / "run"), **IDENTITY)
    first = run.summary["version"]
    idle = srl.resume(run.folder, max_staleness=3)
    assert "nothing was left to do" in idle.summary["reason"]
    later = srl.resume(run.folder, stop__env_steps=4000)
    assert (later.summary["status"], later.summary["env_steps"] >= 4000) == ("completed", True)
    again = srl.resume(run.folder, checkpoint=first, stop__env_steps=4500)
    assert again.summary["status"] == "completed"


def test_whole_numbers_of_a_recipe_are_of_the_same_shape_when_they_are_read_back() -> None:
    """Else what an own recipe writes as 2 would cost a resumed run its blocks, read back as 2.0."""
    made = find_experiment("toy/identity")
    made = replace(made, env=replace(made.env, scale_rewards=2, timeout_seconds=60))
    back = decode_experiment(json.loads(json.dumps(encode_experiment(made))))
    assert isinstance(back.env.scale_rewards, float)
    plan = make_plan(made)
    assert shape_of(made, plan) == shape_of(back, plan)
    other = replace(made, env=replace(made.env, scale_rewards=3))
    assert shape_of(made, plan) != shape_of(other, plan)


def test_lanes_that_begin_anew_before_a_first_version_bring_other_rows(tmp_path: Path) -> None:
    options = {"replay": replace(PRIORITISED["replay"], capacity=50_000, warm_up=50_000)}
    run = train("masked", tmp_path / "run", options, launcher="inline", stop__env_steps=1500)
    before = len(observations(run.folder))
    run = srl.resume(run.folder, stop__env_steps=3000, max_staleness=2)
    rows = observations(run.folder)
    more = min(before, len(rows) - before)
    assert more > 64
    assert not (rows[:more] == rows[before : before + more]).all()


def observations(folder: Path) -> np.ndarray:
    """Of the first lane of a replay buffer, by the newest checkpoint."""
    found = read_checkpoint(latest_checkpoint(folder / "checkpoints")).sections["trainer-0"]
    return found["staging.replay.table.rows.obs"][0]


def test_rows_go_with_a_run_to_another_launcher_and_back(tmp_path: Path) -> None:
    """Each time the rows and the windows that were drawn are counted on."""
    run = train("chain", tmp_path / "run", launcher="inline", stop__env_steps=1000)
    for launcher in ("local", "inline"):
        steps, version = run.summary["env_steps"], run.summary["version"]
        kept, drawn = replayed(run.folder)
        run = srl.resume(run.folder, launcher=launcher, stop__env_steps=steps + 500)
        rows, windows = replayed(run.folder)
        assert rows > kept
        assert windows - drawn == (run.summary["version"] - version) * 128


def test_inline_run_ends_where_it_is_to_also_while_its_buffer_warms_up(tmp_path: Path) -> None:
    options = {"replay": replace(PRIORITISED["replay"], capacity=50_000, warm_up=50_000)}
    said: list[str] = []
    view = lambda _: SimpleNamespace(say=said.append, show=lambda *_: None, close=lambda: None)  # noqa: E731
    run = train(
        "chain", tmp_path / "run", options, launcher="inline", stop__env_steps=3000, view=view
    )
    assert run.summary["version"] == 0
    assert "note: nothing was learned" in "".join(said)
    assert 3000 <= run.summary["env_steps"] < 4100

    anew = {"algorithm__replay__saved": False, "algorithm__replay__warm_up": 4000}
    resumed = srl.resume(run.folder, stop__env_steps=9000, **anew)
    assert resumed.summary["version"] > 0
    again = srl.resume(run.folder, stop__env_steps=11_000)
    assert 11_000 <= again.summary["env_steps"] < 12_100


def replayed(folder: Path) -> tuple[int, int]:
    """Rows that were kept, and windows drawn, since a run began, by its newest checkpoint."""
    checkpoint = read_checkpoint(latest_checkpoint(folder / "checkpoints"))
    found = {k: v for arrays in checkpoint.sections.values() for k, v in arrays.items()}
    counts = next(array for name, array in found.items() if name.endswith("replay.counts"))
    written = next(array for name, array in found.items() if name.endswith("table.written"))
    return int(written.sum()), int(counts[1])


@pytest.mark.slow
@pytest.mark.parametrize("buffers", [0, 1])
def test_local_run_resumes_with_what_was_kept(buffers: int, start_run: Any) -> None:
    run = start_run(CHAIN, *LONG, "--buffers.count", str(buffers))
    run.wait_for_rows(30)
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    before = run.summary

    kept, drawn = replayed(run.folder)
    assert kept > 1000
    resumed = srl.resume(run.folder, stop__env_steps=before["env_steps"] + 500)
    assert resumed.summary["status"] == "completed"
    assert resumed.summary["version"] > before["version"]
    more = [now - then for now, then in zip(replayed(run.folder), (kept, drawn), strict=True)]
    assert more[0] > 0
    # a buffer that begins anew has drawn nothing before
    assert more[1] == (resumed.summary["version"] - before["version"]) * 128
