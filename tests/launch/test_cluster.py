"""A run on several hosts, which here are links of their own on loopback."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import srl
from srl.launch import controller
from srl.launch.cluster import ClusterLauncher, SubprocessStarter
from srl.launch.graph.plan import Plan

PLACEMENTS = {
    "actors, inference and training apart": (
        {"inference": "shm", "policies__count": 2, "actors__count": 2},
        {"actor-0": 1, "actor-1": 1, "policy-0": 2, "policy-1": 2},
    ),
    "inline inference on another host": ({"inference": "inline"}, {"actor-0": 1}),
    "mixed": (
        {"inference": "shm", "policies__count": 2, "actors__count": 4},
        {"actor-1": 1, "actor-2": 1, "actor-3": 2, "policy-1": 2},
    ),
}


def place(monkeypatch: pytest.MonkeyPatch, hosts: dict[str, int]) -> list[ClusterLauncher]:
    """Have runs of the local launcher be on several hosts."""
    made: list[ClusterLauncher] = []

    def launch(plan: Plan, folder: Path) -> ClusterLauncher:
        placed = msgspec.structs.replace(plan, hosts=hosts)
        starters = {
            host: SubprocessStarter("127.0.0.1", folder / "logs" / f"link-{host}.log")
            for host in range(max(hosts.values()) + 1)
        }
        made.append(ClusterLauncher(placed, folder, starters))
        return made[-1]

    monkeypatch.setattr(controller, "LocalLauncher", launch)
    return made


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_run_learns_wherever_its_workers_are(
    placement: str,
    auditing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    assert_ledger_adds_up: Any,
) -> None:
    options, hosts = PLACEMENTS[placement]
    place(monkeypatch, hosts)
    run = srl.train(auditing, launcher="local", seed=1, out=str(tmp_path / "run"), **options)
    assert run.summary["status"] == "completed"
    assert run.summary["eval_return"] >= 15  # of 16; guessing gives 4
    assert_ledger_adds_up(run.summary)
    assert run.summary["blocks_lost"] == 0
    assert not any(run.folder.glob("errors/*"))


def test_no_key_is_in_the_run_folder(
    auditing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = place(monkeypatch, {"actor-0": 1})
    run = srl.train(auditing, launcher="local", seed=1, out=str(tmp_path / "run"))
    keys = made[0]._keys
    for path in run.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert keys.secret.encode() not in data, path
            assert keys.public.encode() not in data, path
    json.loads((run.folder / "summary.json").read_text())
