"""Writes a trained policy as a file that acts without SRL: by ONNX Runtime, or by torch alone."""

import importlib.util
import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from srl.core.algorithm import Policy
from srl.core.env import AgentSpec
from srl.core.errors import ConfigError
from srl.core.names import nearest

if TYPE_CHECKING:  # torch is imported when a policy is written: a bad request is refused at once
    from torch.export import ExportedProgram

_SUFFIX = {"onnx": ".onnx", "torch": ".pt2"}
"""Format to the files it is written as."""
_NEEDS = {"onnx": ("onnx", "onnxscript"), "torch": ()}


@dataclass(frozen=True)
class Exported:
    """A policy in a file; shapes are those of one lane, before which there is one axis of lanes."""

    path: Path
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    """Name to shape and dtype: observations as the env shows them, stacked where it was trained
    so; with a memory also `first`, which says that an episode begins, and its state."""
    outputs: Mapping[str, tuple[tuple[int, ...], str]]
    """`action` as the env takes it; with a memory also `next_` and the name of each state."""

    def __str__(self) -> str:
        lines = [str(self.path)]
        for kind, rows in (("input", self.inputs), ("output", self.outputs)):
            lines += [f"{kind:<6}  {name}  {_shown(*row)}" for name, row in rows.items()]
        return "\n".join(lines)


def _shown(shape: tuple[int, ...], dtype: str) -> str:
    """`[N, 4] float32`."""
    return f"[{', '.join(['N', *map(str, shape)])}] {dtype}"


def check_export(run: Path, form: str, out: Path | None) -> Path:
    """The file to write; raises ConfigError, before anything is read, where it cannot be."""
    if form not in _SUFFIX:
        hint = nearest(form, list(_SUFFIX)) or f": there are {', '.join(_SUFFIX)}"
        raise ConfigError(f"a policy cannot be exported as {form!r}{hint}")
    path = run / f"policy{_SUFFIX[form]}" if out is None else out
    if path.suffix != _SUFFIX[form]:
        raise ConfigError(
            f"a policy exported as {form} is a {_SUFFIX[form]} file, got {str(path)!r}"
        )
    if path.is_dir():
        raise ConfigError(f"the file {path} would replace a folder")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} for the file {path.name}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"the folder {path.parent} cannot be written: choose another --out")
    missing = [name for name in _NEEDS[form] if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{form} needs {', '.join(missing)}: pip install 'really-scalable-rl[onnx]'"
        )
    return path


def write_policy(policy: Policy, agent: AgentSpec, form: str, path: Path) -> Exported:
    """Write the best actions of a policy as a function of what its agents see, in one file.

    Raises ConfigError for a policy that is no network, or one that torch cannot follow.
    """
    from srl.nets.greedy import Greedy, trace
    from srl.nets.policy import NetworkPolicy

    if not isinstance(policy, NetworkPolicy):
        raise ConfigError(
            f"{type(policy).__name__} cannot be exported: only policies that are an "
            "srl.nets.policy:NetworkPolicy are"
        )
    greedy = Greedy(policy, agent).eval().requires_grad_(False)
    aside = path.with_name(f".{path.stem}.writing{path.suffix}")
    try:
        with _quiet():
            program = trace(greedy)
            if form == "torch":
                _write_torch(program, aside)
            else:
                _write_onnx(program, aside, greedy.inputs, greedy.outputs)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return Exported(path, greedy.inputs, greedy.outputs)


def _write_torch(program: "ExportedProgram", path: Path) -> None:
    import torch

    torch.export.save(program, path)


def _write_onnx(
    program: "ExportedProgram", path: Path, inputs: Iterable[str], outputs: Iterable[str]
) -> None:
    import torch

    try:
        made = torch.onnx.export(
            program,
            (),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamo=True,
            verbose=False,
        )
    except Exception as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ConfigError(f"ONNX cannot say what the policy does: {reason}; try torch") from error
    assert made is not None
    made.save(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of its own parts, and of packages that are not needed."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
