"""The examples outside the package run and learn, by the commands their READMEs give."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import srl
from srl import cli

ROOT = Path(__file__).parents[1]
README = ROOT / "examples" / "own_everything" / "README.md"
COMMANDS = re.findall(r"^srl (train .*)$", README.read_text(), re.MULTILINE)


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def run(words: list[str], folder: Path) -> dict[str, Any]:
    assert cli.main([*words, "--out", str(folder)]) == 0
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("command", COMMANDS)
def test_own_everything_learns(command: str, tmp_path: Path) -> None:
    summary = run(shlex.split(command), tmp_path / "run")
    assert summary["algorithm"] == "reinforce"
    assert summary["eval_return"] >= 0.95  # of 1; a paddle that stands still gets -0.6
    assert summary["staleness_max"] == 0
    accounted = ("consumed", "dropped", "lost", "in_flight")
    assert summary["blocks_sent"] == sum(summary[f"blocks_{name}"] for name in accounted)


def test_own_everything_is_resumed_exactly(tmp_path: Path) -> None:
    command = [*shlex.split(COMMANDS[0]), "--stop.return", "2", "--stop.env-steps"]
    assert cli.main([*command, "6000", "--out", str(tmp_path / "whole")]) == 1
    assert cli.main([*command, "3000", "--out", str(tmp_path / "parts")]) == 1
    assert cli.main(["resume", str(tmp_path / "parts"), "--stop.env-steps", "6000"]) == 1
    whole, parts = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "parts")
    )
    for row in (*whole, *parts):
        del row["time"]
    assert whole == parts


def test_both_launchers_are_shown() -> None:
    assert any("--launcher inline" in command for command in COMMANDS)
    assert any("--launcher local" in command for command in COMMANDS)


def test_exported_policy_plays_without_srl_and_without_torch(tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    words = "train cartpole --launcher inline --stop.env-steps 3000 --evaluation.episodes 1"
    run(words.split(), tmp_path / "run")
    file = tmp_path / "policy.onnx"
    assert cli.main(["export", str(tmp_path / "run"), "--format", "onnx", "--out", str(file)]) == 0
    example = ROOT / "examples" / "export" / "play.py"
    code = f"""import runpy, sys; sys.argv[1:] = [{str(file)!r}]; runpy.run_path({str(example)!r})
assert not {{"srl", "torch"}} & sys.modules.keys()"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    policy, env = srl.load(tmp_path / "run"), gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    total, is_over = 0.0, False
    while not is_over:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
        total, is_over = total + float(reward), terminated or truncated
    assert done.stdout == f"return {total:g}\n"
