"""Experiments as JSON: what `config.json` holds and what workers are sent."""

from dataclasses import MISSING, asdict, fields
from typing import Any

import msgspec

from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.core.names import load_object, reference_of


def encode_experiment(experiment: Experiment[Any]) -> dict[str, Any]:
    """A plain, complete and reloadable form."""
    data = {f.name: getattr(experiment, f.name) for f in fields(experiment)}
    plain = msgspec.to_builtins({k: v for k, v in data.items() if k != "algorithm"})
    algorithm = experiment.algorithm
    plain["algorithm"] = {"type": reference_of(type(algorithm)), **asdict(algorithm)}  # pyright: ignore[reportArgumentType] - configs are dataclasses
    return plain


def plain_numbers(value: Any) -> Any:
    """The same for 32 and 32.0, as a recipe and what was read back write them."""
    if isinstance(value, dict):
        return {key: plain_numbers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def decode_algorithm(data: dict[str, Any]) -> Any:
    """The algorithm's config; imports its module (and so, as a rule, torch)."""
    options = dict(_convert(data, dict, "algorithm"))
    cls = load_object(str(options.pop("type", "")))
    return _convert(options, cls, "algorithm")


def decode_experiment(data: dict[str, Any]) -> Experiment[Any]:
    """The experiment that `encode_experiment` wrote; raises ConfigError naming the option."""
    values: dict[str, Any] = {}
    for f in fields(Experiment):
        if f.name not in data and f.default is MISSING:
            raise ConfigError(f"{f.name} is missing")
        if f.name == "algorithm":
            values[f.name] = decode_algorithm(data[f.name])
        elif f.name in data:
            values[f.name] = _convert(data[f.name], f.type, f.name)
    return Experiment(**values)


def _convert(value: Any, kind: Any, option: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{option}: {error}") from error
