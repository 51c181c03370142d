"""Functions of tensors on a GPU, replayed as CUDA graphs: one launch instead of hundreds."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
_EAGER_CALLS = 3
"""Calls that run as they are before one is captured: libraries choose their algorithms in these."""


def map_tensors(function: Callable[[Tensor], Tensor], nest: Any) -> Any:
    """The nest of tuples, dicts and None with `function` of each of its tensors."""
    if isinstance(nest, Tensor):
        return function(nest)
    if isinstance(nest, dict):
        return {name: map_tensors(function, part) for name, part in nest.items()}
    if isinstance(nest, tuple):
        parts = [map_tensors(function, part) for part in nest]
        make = getattr(nest, "_make", tuple)  # a NamedTuple, or a plain one
        return make(parts)
    return nest


def tensors_of(nest: Any) -> list[Tensor]:
    """The tensors of a nest, in order."""
    found: list[Tensor] = []
    map_tensors(lambda x: (found.append(x), x)[1], nest)
    return found


class Graphed:
    """A function whose calls with tensors of the same shapes are replayed.

    Its results are overwritten by the next call with these shapes. It may change tensors of its own
    (weights), but must read nothing else that changes, and must never look at a value on the host.
    """

    def __init__(self, function: Callable[..., T]) -> None:
        self._function = function
        self._captures: dict[tuple[Any, ...], _Capture] = {}
        self._pool: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Like the function: arguments are nests of tensors on one GPU."""
        key = tuple((x.shape, x.dtype) for x in tensors_of(arguments))
        capture = self._captures.get(key)
        if capture is None:
            capture = self._captures[key] = _Capture(self._function, arguments)
        self._pool = capture.run(arguments, self._pool)
        return capture.results

    def inputs(self, *example: Any) -> Any:
        """The tensors that a call with shapes like these reads: filled in place, nothing is copied."""
        key = tuple((x.shape, x.dtype) for x in tensors_of(example))
        if key not in self._captures:
            self._captures[key] = _Capture(self._function, example)
        return self._captures[key].arguments


class _Capture:
    """One function at one set of shapes."""

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        self._function = function
        self.arguments = map_tensors(torch.empty_like, arguments)
        self.results: Any = None
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream()

    def run(self, arguments: Any, pool: Any) -> Any:
        """Call, capture or replay; returns the memory pool that captures share."""
        for mine, theirs in zip(tensors_of(self.arguments), tensors_of(arguments), strict=True):
            if mine is not theirs:
                mine.copy_(theirs, non_blocking=True)
        if self._graph is not None:
            self._graph.replay()
            return pool
        self._calls += 1
        self._stream.wait_stream(torch.cuda.current_stream())
        if self._calls <= _EAGER_CALLS:
            with torch.cuda.stream(self._stream):
                self.results = self._function(*self.arguments)
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                self.results = self._function(*self.arguments)
            self._graph = graph
            graph.replay()
            pool = graph.pool()
        torch.cuda.current_stream().wait_stream(self._stream)
        return pool
