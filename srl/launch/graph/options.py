"""Command-line options: every typed field of an experiment, by its dotted name.

tyro makes the parser and the help text from the fields; unknown names are refused here first, with
the nearest valid one.
"""

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any

import tyro

from srl.core.errors import ConfigError
from srl.core.experiment import Experiment

_HIDDEN = ("name", "routes")
"""Fields that are the experiment's own business."""


def option_names(config: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of every option of a config, as typed on the command line."""
    for field in fields(config):
        value = getattr(config, field.name)
        name = f"{prefix}{field.name.rstrip('_').replace('_', '-')}"
        if is_dataclass(value):
            yield from option_names(value, f"{name}.")
        elif prefix or field.name not in _HIDDEN:
            yield name


def parse_options(experiment: Experiment[Any], arguments: Sequence[str]) -> Experiment[Any]:
    """The experiment with the options in `arguments`; raises ConfigError for a bad one."""
    check_names(experiment, arguments)
    kind = Experiment[type(experiment.algorithm)]  # pyright: ignore[reportInvalidTypeArguments] - for tyro
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
            return tyro.cli(
                kind,
                default=experiment,
                args=[_tyro_name(argument) for argument in arguments],
                config=(tyro.conf.FlagConversionOff,),
            )
    except SystemExit:
        raise ConfigError(_first_paragraph(errors.getvalue())) from None


def help_text(experiment: Experiment[Any], program: str) -> str:
    """Every option, its default and what it does."""
    kind = Experiment[type(experiment.algorithm)]  # pyright: ignore[reportInvalidTypeArguments] - for tyro
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        tyro.cli(
            kind,
            default=experiment,
            args=["--help"],
            prog=program,
            config=(tyro.conf.FlagConversionOff,),
        )
    return _without_hidden(out.getvalue().replace("--stop.return_", "--stop.return "))


def _without_hidden(text: str) -> str:
    """Help without what `check_names` refuses; an option begins where its line is indented by 2."""
    kept, is_hidden = [], False
    for line in text.splitlines(keepends=True):
        words = line.split()
        indent = len(line) - len(line.lstrip(" "))
        if words and indent <= 2 and words[0].strip("-"):  # a rule belongs to what is above it
            is_hidden = any(re.match(rf"(--)?{name}\b(?!-)", words[0]) for name in _HIDDEN)
        if not is_hidden:
            kept.append(line)
    return "".join(kept)


def check_names(experiment: Experiment[Any], arguments: Sequence[str]) -> None:
    """Raise ConfigError for the first option that does not exist, naming the nearest that does."""
    known = list(option_names(experiment))
    for argument in arguments:
        if not argument.startswith("--"):
            continue
        name = argument[2:].partition("=")[0].replace("_", "-").rstrip("-")
        if name not in known:
            close = get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f": did you mean --{close[0]}?" if close else ""
            raise ConfigError(
                f"unknown option --{name}{hint} (srl train {experiment.name} --help lists them)"
            )


def to_arguments(options: dict[str, Any]) -> list[str]:
    """Options of the Python API, as they would be typed."""
    arguments = []
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        arguments += [f"--{name}", *(str(v) for v in values)]
    return arguments


def _tyro_name(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    name = name.replace("_", "-")
    return ("--stop.return_" if name == "--stop.return" else name) + equals + value


def _first_paragraph(text: str) -> str:
    """Tyro's message without its box."""
    lines = [
        line.strip("│╭╰╮╯─ ").replace("--stop.return_", "--stop.return")
        for line in text.splitlines()
    ]
    words = [line for line in lines if line.strip("-") and not line.startswith("For full helptext")]
    if len(words) > 1 and words[1].lower().startswith(words[0].lower()):
        del words[0]  # a title that says what the first line says
    return " ".join(words)
