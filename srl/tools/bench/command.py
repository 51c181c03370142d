"""What every `srl bench` command shares: how it is found, and how its words are read."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.core.names import load_object, nearest
from srl.tools.bench.workloads import WORKLOADS
from srl.tools.words import Reader, read_name, read_options

COMMANDS: dict[str, str] = {
    "cost": "srl.tools.bench.cost:main",
    "train": "srl.tools.bench.train:main",
    "ablate": "srl.tools.bench.ablate:main",
    "peers": "srl.tools.bench.peers:main",
    "scale": "srl.tools.bench.scale:main",
}
"""Name to "module:function"; the function takes the words after the name, returns the exit code."""
_NAMELESS = {"scale": ""}
"""Commands that are about no workload."""


def main(words: Sequence[str]) -> int:
    """Run `srl bench COMMAND ...`; returns the exit code."""
    if not words:
        commands = [f"  srl bench {name}{_NAMELESS.get(name, ' NAME')}" for name in COMMANDS]
        workloads = [f"  {name}" for name in WORKLOADS]
        names = "NAME is one of these workloads, or an experiment as 'srl train' takes it:"
        sys.stdout.write("\n".join([*commands, names, *workloads]) + "\n")
        return 0
    name = words[0]
    if name not in COMMANDS:
        hint = nearest(name, list(COMMANDS)) or f": there are {', '.join(COMMANDS)}"
        raise ConfigError(f"srl bench has no command {name!r}{hint}")
    run: Callable[[Sequence[str]], int] = load_object(COMMANDS[name])
    return run(words[1:])


def read_words(
    words: Sequence[str], usage: str, own: Mapping[str, Reader | None]
) -> tuple[str, dict[str, Any], list[str]]:
    """The name, the command's own options, and the options of the experiment.

    Args:
        words: as typed after the command: NAME, then options `--a value` or `--a=value`.
        usage: one line, for what is refused.
        own: the command's option to what reads its value; None: it takes no value.
    """
    name, rest = read_name(words, usage)
    return name, *read_options(rest, own)


def find(name: str, arguments: Sequence[str] = ()) -> Experiment[Any]:
    """The experiment of a workload, or of any name that `srl train` takes, with options applied."""
    from srl.api import find_experiment

    workload = WORKLOADS.get(name)
    if workload is None:
        return find_experiment(name, arguments)
    return find_experiment(workload.experiment, [*workload.arguments(), *arguments])
