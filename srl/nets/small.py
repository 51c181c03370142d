"""Acting without torch: a small actor-critic in NumPy, for inference inside actors.

Acts like `nets/actor_critic.py` by the same weights under the same names, where that has neither
images nor a memory. At such sizes torch takes longer to reach the products than to compute them;
and a process without torch starts in a fraction of the time and of the memory.

Axes: `N` lanes, `D` features, `H` size of a layer of actor or critic, `n` outputs of the actor.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

import numpy as np

from srl.core.algorithm import NamedPolicy, Records
from srl.core.arrays import Arrays, check_arrays, write_arrays
from srl.core.env import ActionSpace, AgentSpec, Box, Discrete, MultiDiscrete, Observation
from srl.core.spec import Field, Spec
from srl.nets.limits import LARGEST_NORMALISED, SMALLEST_VARIANCE

log = logging.getLogger(__name__)

LARGEST_LAYER = 256
"""Beyond, torch's products are as fast."""
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
LOWEST = np.finfo(np.float32).min
_KEPT_SIZES = 8
_TANH_IS_ONE = 20.0


def small_actor_critic(
    agent: AgentSpec,
    *,
    hidden: Sequence[int],
    activation: str,
    normalise_observations: bool,
    normalise_returns: bool,
) -> NamedPolicy | None:
    """The name of a SmallActorCritic; None where it has no such agent, or would not be faster."""
    seen = [o for o in agent.observations if o is not agent.action_mask]
    has_images = any(len(o.seen_shape) >= 3 and not o.categories for o in seen)
    sizes = (*hidden, *(_num_features(o) for o in seen), _num_outputs(agent.action))
    if has_images or max(sizes) > LARGEST_LAYER:
        return None
    options = {
        "hidden": list(hidden),
        "activation": activation,
        "normalise_observations": normalise_observations,
        "normalise_returns": normalise_returns,
    }
    return NamedPolicy("srl.nets.small:SmallActorCritic", options)


class SmallActorCritic:
    """A policy over plain numbers and categories, in float32; its weights are 0 until loaded."""

    def __init__(
        self,
        agent: AgentSpec,
        *,
        seed: int,
        hidden: Sequence[int],
        activation: str,
        normalise_observations: bool,
        normalise_returns: bool,
    ) -> None:
        numbers = (Field("log_prob", (), "float32"), Field("value", (), "float32"))
        self.records = Records(Spec((agent.action.field, *numbers)))
        mask = agent.action_mask
        self._mask_name = None if mask is None else mask.name
        self._weights: Arrays = {}  # views of the arrays that are computed with
        seen = [o for o in agent.observations if o is not mask]
        self._encoder = _Encoder(seen, self._weights, normalise=normalise_observations)
        self._body = _Body(self._encoder.num_features, hidden, activation, self._weights)
        kind = "mean" if isinstance(agent.action, Box) else "logits"
        num_outputs = _num_outputs(agent.action)
        self._outputs = _Outputs(self._body, num_outputs, f"policy_head.{kind}", self._weights)
        self._head = _make_head(agent.action, self._weights)
        self._returns = _Normaliser("returns", (), self._weights) if normalise_returns else None
        self._shapes = {name: array.shape for name, array in self._weights.items()}
        self._rng = np.random.Generator(np.random.SFC64(seed))

    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Sample actions for N lanes."""
        return self._answer(inputs, self._rng)

    def act_greedy(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Take the most likely actions for N lanes."""
        return self._answer(inputs, None)

    def weights(self) -> Arrays:
        """Parameters and normalisers: those in use."""
        return self._weights

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights; raises CheckpointError naming a tensor that does not fit."""
        check_arrays(self._shapes, weights)
        write_arrays(self._weights, weights)
        for part in (self._encoder, self._head, self._returns):
            if part is not None:
                part.prepare()

    def save(self) -> Arrays:
        """State of the sampling generator."""
        state = self._rng.bit_generator.state
        rest = [state["has_uint32"], state["uinteger"]]
        return {"sfc64": np.array([*state["state"]["state"], *rest], np.uint64)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; a state that torch's generator had is left alone."""
        if "sfc64" not in state:
            log.warning(
                "the checkpoint has the random state of a policy that sampled with torch: this one "
                "samples without it and begins anew, so the run goes on with other actions"
            )
            return
        *words, has_uint32, uinteger = state["sfc64"].tolist()
        self._rng.bit_generator.state = {
            "bit_generator": "SFC64",
            "state": {"state": np.array(words, np.uint64)},
            "has_uint32": has_uint32,
            "uinteger": uinteger,
        }

    def _answer(self, inputs: Mapping[str, np.ndarray], rng: np.random.Generator | None) -> Arrays:
        outputs = self._outputs(self._body(self._encoder(inputs)))
        allowed = None if self._mask_name is None else inputs[self._mask_name]
        action, log_prob = self._head(outputs[:-1], allowed, rng)
        value = outputs[-1]
        if self._returns is not None:
            value *= self._returns.std
            value += self._returns.mean
        return {"action": action, "log_prob": log_prob, "value": value}


class _Head(Protocol):
    """From what the actor puts out to actions."""

    def prepare(self) -> None:
        """Weights were loaded."""
        ...

    def __call__(
        self, outputs: np.ndarray, allowed: np.ndarray | None, rng: np.random.Generator | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions `[N, *shape]` and their log-probabilities `[N]`, of `outputs` `[n, N]`.

        They are drawn by `rng`; None: the most likely. `outputs` may be overwritten.
        """
        ...


class _Normaliser:
    """Mean and standard deviation; see `nets/normaliser.py`."""

    def __init__(self, name: str, shape: tuple[int, ...], weights: Arrays) -> None:
        self.mean, self.std = np.zeros(shape, np.float32), np.ones(shape, np.float32)
        self._var = np.ones(shape, np.float32)
        weights[f"{name}.count"] = np.zeros(())
        weights[f"{name}.mean"], weights[f"{name}.var"] = self.mean, self._var

    def prepare(self) -> None:
        """Weights were loaded."""
        np.sqrt(np.maximum(self._var, np.float32(SMALLEST_VARIANCE)), out=self.std)


class _Encoder:
    """The features of all observations side by side; see `nets/encoder.py`."""

    def __init__(
        self, observations: Sequence[Observation], weights: Arrays, *, normalise: bool
    ) -> None:
        self.num_features = sum(_num_features(o) for o in observations)
        self._parts: list[_Flat | _OneHot] = []
        start = 0
        for i, seen in enumerate(observations):
            if seen.categories:
                self._parts.append(_OneHot(seen, start))
            else:
                name = f"encoder.parts.{i}.normaliser" if normalise else None
                self._parts.append(_Flat(seen, start, name, weights))
            start += _num_features(seen)
        self._room = lru_cache(_KEPT_SIZES)(self._make_room)

    def prepare(self) -> None:
        """Weights were loaded."""
        for part in self._parts:
            part.prepare()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Each observation `[N, *shape]`; all of them, and a 1, `[N, D + 1]`."""
        features, places = self._room(len(inputs[self._parts[0].name]))
        for part, place in zip(self._parts, places, strict=True):
            part.write(inputs[part.name], place, features)
        return features

    def _make_room(self, n: int) -> tuple[np.ndarray, list[np.ndarray]]:
        features = np.ones((n, self.num_features + 1), np.float32)
        return features, [features[:, part.start : part.stop] for part in self._parts]


class _Flat:
    """Numbers, normalised if asked."""

    def __init__(
        self, seen: Observation, start: int, normaliser: str | None, weights: Arrays
    ) -> None:
        self.name, self.start, self.stop = seen.name, start, start + _num_features(seen)
        self._normaliser = (
            None if normaliser is None else _Normaliser(normaliser, seen.seen_shape, weights)
        )
        self._bound = np.full(self.stop - start, LARGEST_NORMALISED, np.float32)
        self.prepare()

    def prepare(self) -> None:
        """Weights were loaded."""
        if self._normaliser is not None:
            self._normaliser.prepare()
            self._mean = self._normaliser.mean.reshape(-1)
            self._scale = 1 / self._normaliser.std.reshape(-1)

    def write(self, x: np.ndarray, place: np.ndarray, _: np.ndarray) -> None:
        """Flatten each row into its place."""
        flat = x.reshape(len(x), -1)
        if self._normaliser is None:
            np.copyto(place, flat, casting="unsafe")
            return
        np.subtract(flat.astype(np.float32, copy=False), self._mean, out=place)
        np.multiply(place, self._scale, out=place)
        np.minimum(place, self._bound, out=place)
        np.maximum(place, -self._bound, out=place)


class _OneHot:
    """Categories, one 1 for each value."""

    def __init__(self, seen: Observation, start: int) -> None:
        self.name, self.start, self.stop = seen.name, start, start + _num_features(seen)
        sizes = seen.categories * seen.stack
        self._offsets = np.cumsum((start, *sizes[:-1]))

    def prepare(self) -> None:
        """There are no weights."""

    def write(self, x: np.ndarray, place: np.ndarray, features: np.ndarray) -> None:
        """Set one feature for each value."""
        place.fill(0)
        index = x.reshape(len(x), -1).astype(np.int64)
        index += self._offsets
        np.put_along_axis(features, index, 1, axis=1)


class _Body:
    """The hidden layers of actor and critic, side by side; see `nets/mlp.py`.

    Biases are the last rows of the weights, for which each half of a layer's output ends in a 1. So a
    layer is one product and one activation. The first layers of both are one product.
    """

    def __init__(
        self, num_inputs: int, hidden: Sequence[int], activation: str, weights: Arrays
    ) -> None:
        self.widths = [num_inputs + 1, *(size + 1 for size in hidden)]
        """Of each half of each layer's output, the features first."""
        self._is_relu = activation == "relu"
        self._weights: list[np.ndarray] = []
        for i, (above, width) in enumerate(pairwise(self.widths)):
            weight = np.zeros((above, 2, width) if i == 0 else (2, above, width), np.float32)
            halves = weight.swapaxes(0, 1) if i == 0 else weight
            halves[:, -1, -1] = 1 if self._is_relu else _TANH_IS_ONE
            for name, half in zip(("actor", "critic"), halves, strict=True):
                weights[f"{name}.layers.{i}.weight"] = half[:-1, :-1]
                weights[f"{name}.layers.{i}.bias"] = half[-1, :-1]
            self._weights.append(weight.reshape(above, 2 * width) if i == 0 else weight)
        self._room = lru_cache(_KEPT_SIZES)(self._make_room)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """`[N, D + 1]` to `[N, 2(H + 1)]`; without layers, the features."""
        x = whole = features
        room = self._room(len(features))
        for weight, (whole, product, halves, zeros) in zip(self._weights, room, strict=True):
            np.matmul(x, weight, out=product)
            if self._is_relu:
                np.maximum(whole, zeros, out=whole)
            else:
                np.tanh(whole, out=whole)
            x = halves
        return whole

    def _make_room(self, n: int) -> list[tuple[np.ndarray, ...]]:
        """Of each layer: its output `[N, 2(H + 1)]`, as products write and read it, and zeros."""
        room = []
        for i, width in enumerate(self.widths[1:]):
            whole = np.zeros((n, 2 * width), np.float32)
            halves = whole.reshape(n, 2, width).swapaxes(0, 1)
            room.append((whole, halves if i else whole, halves, np.zeros_like(whole[0])))
        return room


class _Outputs:
    """The last layer: `n` numbers of the actor, and the value."""

    def __init__(self, body: _Body, n: int, name: str, weights: Arrays) -> None:
        width = body.widths[-1]
        has_halves = len(body.widths) > 1
        self._weight = np.zeros((n + 1, 2 * width if has_halves else width), np.float32)
        actor, critic = self._weight[:n, :width], self._weight[n:, -width:]
        for head, part in ((name, actor), ("value_head.value", critic)):
            weights[f"{head}.weight"], weights[f"{head}.bias"] = part[:, :-1].T, part[:, -1]
        self._room = lru_cache(_KEPT_SIZES)(lambda lanes: np.zeros((n + 1, lanes), np.float32))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """`[N, 2(H + 1)]` to `[n + 1, N]`."""
        return np.matmul(self._weight, x.T, out=self._room(len(x)))


class _Choices:
    """Discrete and MultiDiscrete actions: of logits, choice by choice."""

    def __init__(self, action: Discrete | MultiDiscrete) -> None:
        nvec = (action.n,) if isinstance(action, Discrete) else action.nvec
        stops = np.cumsum(nvec).tolist()
        self._parts = [slice(stop - n, stop) for n, stop in zip(nvec, stops, strict=True)]
        self._is_single = isinstance(action, Discrete)
        self._room = lru_cache(_KEPT_SIZES)(self._make_room)

    def prepare(self) -> None:
        """There are no weights."""

    def __call__(
        self, outputs: np.ndarray, allowed: np.ndarray | None, rng: np.random.Generator | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw by the inverse of the cumulated probabilities."""
        actions, drawn, lanes, room = self._room(outputs.shape[1])
        if allowed is not None:
            np.copyto(outputs, LOWEST, where=allowed.T == 0)
        log_prob = None
        for part, action, (sums, *rows) in zip(self._parts, actions, room, strict=True):
            logits = outputs[part]
            logits -= np.maximum.reduce(logits, axis=0)
            np.exp(logits, out=sums)
            for above, here in pairwise(rows):  # of few choices faster than `accumulate`
                np.add(above, here, out=here)
            total = rows[-1]
            if rng is None:
                np.argmax(logits, axis=0, out=action)
            else:
                # below 1 by half a step of float32 at least: the product is below the last sum,
                # and what has no probability, whose sum is that before it, is never drawn
                rng.random(out=drawn, dtype=np.float32)
                np.multiply(drawn, total, out=drawn)
                np.add.reduce(sums[:-1] <= drawn, axis=0, dtype=np.int64, out=action)
            chosen = logits[action, lanes]
            chosen -= np.log(total, out=drawn)
            log_prob = chosen if log_prob is None else np.add(log_prob, chosen, out=chosen)
        assert log_prob is not None
        return actions[0] if self._is_single else actions.T, log_prob

    def _make_room(
        self, n: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[np.ndarray, ...]]]:
        """Actions, drawn numbers, lanes; of each choice sums `[n, N]`, and each of their rows."""
        actions, drawn = np.zeros((len(self._parts), n), np.int64), np.zeros(n, np.float32)
        sums = [np.zeros((part.stop - part.start, n), np.float32) for part in self._parts]
        return actions, drawn, np.arange(n), [(whole, *whole) for whole in sums]


class _Numbers:
    """Box actions: normal around the mean."""

    def __init__(self, shape: tuple[int, ...], weights: Arrays) -> None:
        self._shape = shape
        self._log_std = weights["policy_head.log_std"] = np.zeros(shape, np.float32)
        self._room = lru_cache(_KEPT_SIZES)(self._make_room)
        self.prepare()

    def prepare(self) -> None:
        """Weights were loaded."""
        log_std = self._log_std.reshape(-1, 1)
        self._std, self._scale = np.exp(log_std), np.exp(-log_std)
        self._constant = np.float32((log_std + HALF_LOG_TAU).sum())

    def __call__(
        self, outputs: np.ndarray, allowed: np.ndarray | None, rng: np.random.Generator | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw normal numbers; all are allowed."""
        action, z, log_prob = self._room(outputs.shape[1])
        np.copyto(action, outputs)
        if rng is not None:
            rng.standard_normal(out=z, dtype=np.float32)
            z *= self._std
            action += z
        # of the rounded action, as the learner computes it: not of the numbers just drawn
        np.subtract(action, outputs, out=z)
        z *= self._scale
        z *= z
        np.add.reduce(z, axis=0, out=log_prob)
        log_prob *= np.float32(-0.5)
        log_prob -= self._constant
        return action.T.reshape(-1, *self._shape), log_prob

    def _make_room(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        action, z = np.zeros((2, math.prod(self._shape), n), np.float32)
        return action, z, np.zeros(n, np.float32)


def _make_head(action: ActionSpace, weights: Arrays) -> _Head:
    return _Numbers(action.shape, weights) if isinstance(action, Box) else _Choices(action)


def _num_features(seen: Observation) -> int:
    return sum(seen.categories) * seen.stack if seen.categories else math.prod(seen.seen_shape)


def _num_outputs(action: ActionSpace) -> int:
    match action:
        case Discrete(n):
            return n
        case MultiDiscrete(nvec):
            return sum(nvec)
        case Box(shape):
            return math.prod(shape)
