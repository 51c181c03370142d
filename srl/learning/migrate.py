"""Formats of checkpoints: a manifest of an older one is read as if it were of today's.

    1   one writer: state.safetensors; one policy, called main
    2   a part a writer, several policies

Whoever changes what is written raises FORMAT, adds the step from the one before, and keeps a small
checkpoint of the old format in tests/learning/golden.
"""

from collections.abc import Callable, Mapping
from typing import Any

from srl.core.errors import CheckpointError

FORMAT = 2
Manifest = dict[str, Any]


def migrate(manifest: Any, where: object) -> Manifest:
    """The manifest as one of today's format; raises CheckpointError where that is impossible.

    Its `format` stays the one it was written in.

    Args:
        manifest: what was read.
        where: its checkpoint, for messages.
    """
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise CheckpointError(
            f"{where} is not a checkpoint of SRL: its format is {found!r}, where this SRL writes "
            f"{FORMAT}"
        )
    if found > FORMAT:
        raise CheckpointError(
            f"{where} has checkpoint format {found}, and this SRL reads 1 to {FORMAT}: it was "
            "written by a newer SRL; use that one"
        )
    for step in range(found, FORMAT):
        try:
            manifest = _STEPS[step](manifest)
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{where} has checkpoint format {step}, but not what belongs to it: {error!r}"
            ) from error
    return manifest


def _from_1(old: Mapping[str, Any]) -> Manifest:
    """One file of one policy becomes one part."""
    progress = dict(old["progress"])
    totals = progress.pop("totals")
    progress["version"] = old["version"]  # its counts lagged behind
    progress.setdefault("train_samples", 0)  # not counted in the beginning
    gone = ("sections", "sha256", "bytes", "ledger", "ledger_before")
    return {
        **{key: value for key, value in old.items() if key not in gone},
        "versions": {"main": old["version"]},
        "parts": [
            {
                "file": "state.safetensors",
                "sha256": old["sha256"],
                "bytes": old["bytes"],
                "sections": old["sections"],
            }
        ],
        "progress": {"totals": totals, "policies": {"main": progress}},
        "ledgers": {"main": old["ledger"]},
        "ledgers_before": {"main": old["ledger_before"]},
    }


_STEPS: dict[int, Callable[[Mapping[str, Any]], Manifest]] = {1: _from_1}
