"""Films: how many frames they have, and what is refused before anything is played."""

import gc
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import srl
from srl import cli
from srl.core.errors import ConfigError
from srl.tools.video import Video, check_video

TOY = "srl.envs.toy:Identity"
OPTIONS = {"launcher": "inline", "stop__env_steps": 600, "evaluation__episodes": 2}


class Drawn(gymnasium.Env):
    """Episodes of 4 or 5 steps; its picture tells the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps, self._length = 0, int(self.np_random.integers(4, 6))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._steps += 1
        return np.zeros(2, np.float32), 1.0, self._steps == self._length, False, {}

    def render(self):
        frame = np.zeros((33, 49, 3), np.uint8)
        frame[:, : 8 * self._steps + 1] = 255
        return frame


class Blind(Drawn):
    """Takes no render_mode."""

    def __init__(self):
        super().__init__(None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a run of each env of this file, made once."""
    made = {}

    def run(name):
        if name not in made:
            env = TOY if name == "toy" else f"{__file__}:{name}"
            out = tmp_path_factory.mktemp("played") / "run"
            experiment = Path(__file__).parents[1] / "bad_envs.py"
            srl.train(f"{experiment}:experiment", out=str(out), env__name=env, **OPTIONS)
            made[name] = out
        return made[name]

    return run


def frames_of(path):
    from imageio import v2 as imageio

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # imageio's reader leaves pipes open
        with imageio.get_reader(path) as reader:
            frames = [np.asarray(frame)[..., :3] for frame in reader]
        del reader
        gc.collect()
    return frames


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_film_has_a_frame_of_every_beginning_and_of_every_step(runs, tmp_path, capfd, suffix):
    pytest.importorskip("imageio")
    if suffix == ".mp4":
        pytest.importorskip("imageio_ffmpeg")
    film = tmp_path / f"film{suffix}"
    assert cli.main(["play", str(runs("Drawn")), "--episodes", "3", "--video", str(film)]) == 0
    *lines, last = capfd.readouterr().out.splitlines()
    assert last == f"video: {film}"
    lengths = [int(line.split()[-2]) for line in lines]
    assert lines == [f"episode {n + 1}: return {k}, {k} steps" for n, k in enumerate(lengths)]
    assert set(lengths) <= {4, 5}
    frames = frames_of(film)
    assert len(frames) == sum(lengths) + 3
    assert frames[0].shape == (34, 50, 3), "even, for the encoder"
    lit = [int((frame[10, :, 0] > 128).sum()) for frame in frames]
    shown = [step for length in lengths for step in range(length + 1)]
    assert all(abs(seen - (8 * step + 1)) <= 2 for seen, step in zip(lit, shown, strict=True))
    assert [p.name for p in tmp_path.iterdir()] == [film.name]


def test_cartpole_is_filmed(tmp_path):
    for package in ("imageio", "imageio_ffmpeg", "pygame"):
        pytest.importorskip(package)
    run = srl.train("cartpole", out=str(tmp_path / "run"), **OPTIONS)
    film = tmp_path / "film.mp4"
    (episode,) = srl.play_run(run.folder, video=film)
    assert len(frames_of(film)) == episode.length + 1


def test_play_without_video_needs_no_pictures(runs):
    (first,) = srl.play_run(runs("toy"), seed=3)
    (again,) = srl.play_run(runs("toy"), seed=3)
    assert first == again
    assert first.length == 16
    sampled = [list(srl.play_run(runs("toy"), seed=3, sampled=True)) for _ in range(2)]
    assert sampled[0] == sampled[1]


@pytest.mark.parametrize(("env", "words"), [("toy", "draws no pictures"), ("Blind", "render_mode")])
def test_env_that_draws_nothing_is_refused(runs, tmp_path, monkeypatch, env, words):
    monkeypatch.setattr("srl.tools.video._NEEDS", {".gif": ()})
    with pytest.raises(ConfigError, match=words):
        list(srl.play_run(runs(env), video=tmp_path / "film.gif"))
    assert not list(tmp_path.iterdir())


def test_bad_paths_are_refused_before_anything_is_played(tmp_path, monkeypatch):
    monkeypatch.setattr("srl.tools.video._NEEDS", {".gif": (), ".mp4": ()})
    (tmp_path / "folder.gif").mkdir()
    for path, words in (
        (tmp_path / "film.avi", "an .mp4 or a .gif"),
        (tmp_path / "film", "an .mp4 or a .gif"),
        (tmp_path / "nowhere" / "film.gif", "there is no folder"),
        (tmp_path / "folder.gif", "would replace a folder"),
    ):
        with pytest.raises(ConfigError, match=words):
            next(srl.play_run(tmp_path / "no run either", video=path))


def test_missing_packages_are_named_with_their_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"needs imageio, imageio_ffmpeg: pip .*really-scalable-rl\[video\]"
    ):
        check_video(tmp_path / "film.mp4")


def test_film_that_is_given_up_leaves_nothing(runs, tmp_path, monkeypatch):
    pytest.importorskip("imageio")
    film = tmp_path / "film.gif"
    episodes = srl.play_run(runs("Drawn"), episodes=5, video=film)
    next(episodes)
    episodes.close()
    assert not list(tmp_path.iterdir())
    video = Video(film, 10)
    video.add(np.zeros((4, 4, 3), np.uint8))
    video.abandon()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["--episodes", "0"],
        ["--episodes", "some"],
        ["--seed", "-1"],
        ["--sampled=yes"],
        ["--vidoe", "x.gif"],
        ["--version", "9999"],
        ["--version", "bset"],
    ],
)
def test_bad_options_exit_2(runs, capfd, words):
    assert cli.main(["play", str(runs("toy")), *words]) == 2
    assert words[0].partition("=")[0].removeprefix("--") in capfd.readouterr().err
