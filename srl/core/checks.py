"""Checks of options that raise one clear error."""

import math
from typing import Generic, Protocol

from srl.core.errors import ConfigError


def check_at_least(option: str, value: float, lowest: float) -> None:
    """Raise ConfigError where a number is below what makes sense."""
    if not (math.isfinite(value) and value >= lowest):
        raise ConfigError(f"{option} must be at least {lowest}, got {value}")


def require_members(found: object, protocol: type, what: str) -> None:
    """Raise ConfigError, naming what is missing, where an object has not all that a protocol asks for."""
    bases = [base for base in protocol.__mro__ if base not in (object, Protocol, Generic)]
    names = {name for base in bases for name in (*vars(base), *base.__annotations__)}
    missing = sorted(n for n in names if not n.startswith("_") and not hasattr(found, n))
    if missing:
        raise ConfigError(
            f"{type(found).__name__} is not {what}: it has no {', '.join(missing)} "
            f"({protocol.__module__}:{protocol.__name__} says what these are)"
        )
