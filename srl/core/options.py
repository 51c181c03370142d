"""Checks of an algorithm's options, made before anything starts."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from srl.core.errors import ConfigError


def check_options(
    config: Any, allowed: str, is_allowed: Callable[[Any], bool], *names: str
) -> None:
    """Raise ConfigError where a named option of `config` is not what is `allowed`, in words.

    None stands for an option that is not used, and is never refused; a number must be finite.
    """
    for name in names:
        value = getattr(config, name)
        numbers = value if isinstance(value, tuple) else (value,)
        is_finite = all(math.isfinite(n) for n in numbers if isinstance(n, float))
        if value is not None and not (is_finite and is_allowed(value)):
            raise ConfigError(f"algorithm.{name} must be {allowed}, got {value}")


def check_one_of(config: Any, choices: tuple[str, ...], *names: str) -> None:
    """Raise ConfigError where a named option of `config` is none of the `choices`."""
    check_options(config, " or ".join(choices), lambda x: x in choices, *names)


def check_memory_options(config: Any, kinds: tuple[str, ...], *names: str) -> None:
    """Raise ConfigError where a named option was set that means nothing, for `config` has no memory.

    It could have one of the `kinds`, of which the first is none.
    """
    if config.memory != kinds[0]:
        return
    defaults = {field.name: field.default for field in fields(config)}
    for name in names:
        default, choice = defaults[name], " or ".join(kinds[1:])
        words = f"{default} without algorithm.memory ({choice})"
        check_options(config, words, lambda x, default=default: x == default, name)
