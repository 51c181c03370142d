"""What launchers say that a checkpoint brings back is named, and what it does not as well."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from srl.core.experiment import EvaluationConfig, TrainersConfig
from srl.experiments.cartpole import cartpole
from srl.launch.graph.plan import Plan, make_plan
from srl.launch.inline import InlineLauncher
from srl.launch.local import LocalLauncher

LOST = "episodes are not restored: envs are seeded at start only"


def plan_of(launcher: str, *, evaluators: int, trainers: int = 1) -> Plan:
    experiment = cartpole()
    return make_plan(
        replace(
            experiment,
            launcher=launcher,
            actors=replace(experiment.actors, count=2),
            evaluation=EvaluationConfig(count=evaluators),
            trainers=TrainersConfig(count=trainers),
        )
    )


@pytest.mark.parametrize("evaluators", [0, 1])
def test_local_launcher_begins_episodes_and_evaluations_anew(
    evaluators: int, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    launcher = LocalLauncher(plan_of("local", evaluators=evaluators), tmp_path)
    try:
        restored, lost = launcher.contract()
    finally:
        launcher.close()
    assert "random state of every trainer" in restored[0]
    assert lost[0].startswith("envs: episodes under way are not restored")
    assert any("an evaluation under way" in words for words in lost) == bool(evaluators)


def test_local_launcher_says_that_other_ranks_draw_anew(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    launcher = LocalLauncher(plan_of("local", evaluators=0, trainers=2), tmp_path)
    try:
        restored, lost = launcher.contract()
    finally:
        launcher.close()
    assert "the first trainer of every policy" in restored[0]
    assert "other trainers" in lost[1]


@pytest.mark.parametrize("evaluators", [0, 1])
def test_inline_launcher_loses_only_what_envs_do(evaluators: int) -> None:
    plan = plan_of("inline", evaluators=evaluators)
    exact, lossy = (
        InlineLauncher(p, lambda: False, lambda _: None)
        for p in (plan, msgspec.structs.replace(plan, env_restores=LOST))
    )
    assert exact.contract()[1] == []
    lost = lossy.contract()[1]
    assert lost[0] == f"envs: {LOST}"
    assert len(lost) == 1 + evaluators
    for launcher in (exact, lossy):
        launcher.close()
