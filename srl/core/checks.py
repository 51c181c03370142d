"""Checks of options that raise one clear error."""

import math

from srl.core.errors import ConfigError


def check_at_least(option: str, value: float, lowest: float) -> None:
    """Raise ConfigError where a number is below what makes sense."""
    if not (math.isfinite(value) and value >= lowest):
        raise ConfigError(f"{option} must be at least {lowest}, got {value}")
