"""What the sinks are told during real runs."""

import os
import re
import signal
import sys
import types
import urllib.request
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

import srl
from srl.telemetry.progress import Progress


class Scraper:
    """A view that reads the run's own endpoint while it runs."""

    def __init__(self) -> None:
        self.address = ""
        self.pages: list[str] = []
        self.has_seen_blocks = False

    def show(self, progress: Progress, seconds: float) -> None:
        if progress.version and self.address:
            with urllib.request.urlopen(self.address, timeout=5) as answer:
                self.pages.append(answer.read().decode())
            if number(self.pages[-1], "srl_blocks", 'state="sent"') and not self.has_seen_blocks:
                self.has_seen_blocks = True
                os.kill(os.getpid(), signal.SIGINT)  # all is seen: the run may end

    def say(self, text: str) -> None:
        if "Prometheus" in text:
            self.address = text.rpartition(" ")[2]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_prometheus_endpoint_tells_of_the_run(auditing: str, tmp_path: Any, launcher: str) -> None:
    view = Scraper()
    run = srl.train(
        auditing,
        launcher=launcher,
        view=lambda _: view,
        out=str(tmp_path / "run"),
        stop__env_steps=100_000_000,
        evaluation__episodes=0,
        metrics__prometheus_port=0,
    )
    assert run.summary["status"] == "interrupted"
    page = view.pages[-1]
    assert number(page, "srl_version") > 0
    assert 0 < number(page, "srl_env_steps_total") <= run.summary["env_steps"]
    assert 0 < number(page, "srl_blocks", 'state="sent"') <= run.summary["blocks_sent"]
    assert number(page, "srl_worker_seconds_total", 'worker="actor",part="env"') > 0


def number(page: str, name: str, label: str = "") -> float:
    found = re.search(rf"^{name}{{[^}}]*{label}}} (.*)$", page, re.M)
    assert found, f"{name} with {label} is not in:\n{page}"
    return float(found[1])


def test_wandb_gets_a_row_a_batch(
    auditing: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = types.ModuleType("wandb")
    module.__spec__ = ModuleSpec("wandb", None)
    logged: list[Any] = []
    summary: dict[str, Any] = {}
    opened = types.SimpleNamespace(
        id="x",
        summary=summary,
        define_metric=lambda *_, **__: None,
        log=logged.append,
        finish=lambda: summary.update(finished=True),
    )
    module.init = lambda **_: opened
    monkeypatch.setitem(sys.modules, "wandb", module)
    out = str(tmp_path / "run")
    run = srl.train(
        auditing, launcher="inline", out=out, stop__env_steps=2000, metrics__wandb="project"
    )
    *rows, evaluated = logged
    assert [row["train/version"] for row in rows] == list(range(1, run.summary["version"] + 1))
    assert evaluated["eval/return"] == run.summary["eval_return"]
    assert summary["status"] == "completed"
    assert summary["eval_return"] == run.summary["eval_return"]
    assert summary["finished"]
