"""Nothing that is read can run code: no pickle anywhere, and a poisoned file is only refused."""

import hashlib
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import srl
from srl import cli
from srl.learning.checkpoint import latest_checkpoint

PACKAGE = Path(srl.__file__).parent
TOY = f"{Path(__file__).parent / 'launch' / 'auditing.py'}:experiment"
FORBIDDEN = {
    "pickle": r"\b(?:c|cloud)?pickle\b(?!d)|\bdill\b|\bjoblib\b",
    "torch.load, torch.save": r"\btorch\.(?:load|save)\b",
    "eval, exec": r"(?<![\w.])(?:eval|exec)\(",
    "marshal, shelve": r"\bimport (?:marshal|shelve)\b|\b(?:marshal|shelve)\.",
    "np.load": r"(?<![\w.])(?:np|numpy)\.load\b|allow_pickle",
    "multiprocessing": r"\bmultiprocessing\b",
    "*_object collectives": r"\b(?:broadcast|gather|all_gather|scatter)_object\b",
    "objects over ZeroMQ": r"\b(?:send|recv)_(?:py)?obj\b",
}
PROSE = re.compile(r'"""(?:.|\n)*?"""|#.*')


@pytest.mark.parametrize("what", FORBIDDEN)
def test_package_does_not_use(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        code = PROSE.sub("", path.read_text())
        found += [f"{path}: {match.group()}" for match in pattern.finditer(code)]
    assert found == []


class Poison:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("command", ["resume", "eval", "inspect"])
@pytest.mark.parametrize("is_signed", [False, True])
def test_poisoned_checkpoint_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str, is_signed: bool
) -> None:
    sign, run = tmp_path / "poisoned", tmp_path / "run"
    srl.train(TOY, launcher="inline", stop__env_steps=300, out=str(run))
    checkpoint = latest_checkpoint(run / "checkpoints")
    poison = pickle.dumps(Poison(sign))
    (checkpoint / "state-inline.safetensors").write_bytes(poison)
    if is_signed:  # the attacker wrote the manifest too
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        signature = {"bytes": len(poison), "sha256": hashlib.sha256(poison).hexdigest()}
        manifest["parts"][0] |= signature
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))

    assert cli.main([command, str(run)]) == 2

    assert "state-inline.safetensors" in capfd.readouterr().err
    assert not sign.exists()
    pickle.loads(poison)  # it would have worked
    assert sign.exists()
