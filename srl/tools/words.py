"""How the words of a command are read: a name, the command's own options, and what is left."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from srl.core.errors import ConfigError

Reader = Callable[[str], Any]
"""What makes a value of a word; raises ValueError where it cannot."""

_KINDS: Mapping[Reader, str] = {float: "a number", int: "a whole number"}


def read_name(words: Sequence[str], usage: str) -> tuple[str, list[str]]:
    """The first word, which is a name, and those after it; raises ConfigError without one."""
    if not words or words[0].startswith("-"):
        raise ConfigError(f"a name is missing: {usage}")
    return words[0], list(words[1:])


def read_options(
    words: Sequence[str], own: Mapping[str, Reader | None]
) -> tuple[dict[str, Any], list[str]]:
    """A command's own options, `--name value` or `--name=value`, and the other words.

    Args:
        words: as typed.
        own: option to what reads its value; None: it takes no value, and is True.

    Raises:
        ConfigError: where one of its own has no value, or one that it cannot have.
    """
    rest, found, others = list(words), dict[str, Any](), list[str]()
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        name = option.removeprefix("--")
        if not option.startswith("--") or name not in own:
            others.append(word)
            continue
        read = own[name]
        if read is None:
            if equals:
                raise ConfigError(f"--{name} takes no value, got {value!r}")
            found[name] = True
            continue
        if not equals:
            if not rest:
                raise ConfigError(f"--{name} needs a value")
            value = rest.pop(0)
        try:
            found[name] = read(value)
        except ValueError:
            kind = _KINDS.get(read, "another value")
            raise ConfigError(f"--{name} needs {kind}, got {value!r}") from None
    return found, others
