"""The controller's account of evaluations."""

from pathlib import Path

from srl.launch import evaluations
from srl.launch.evaluations import Evaluations
from srl.launch.folder import RunFolder
from srl.telemetry.files import Writes


def test_versions_that_nobody_evaluates_are_not_remembered_for_ever(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    account = Evaluations(folder, ["main"], Writes(print), keep=3)
    for version in range(evaluations._REMEMBERED + 100):
        account.learned("main", version, version, 0.0)
    assert len(account._learned["main"]) == evaluations._REMEMBERED
    assert min(account._learned["main"]) == 100
