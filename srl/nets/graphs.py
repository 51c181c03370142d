"""Functions of tensors on a GPU, replayed as CUDA graphs: one launch instead of hundreds."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

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


class Graphed(Generic[T]):
    """A function of fixed tensors, which the caller fills before each call.

    The first calls run as they are, then one is captured, and all others replay it: the result is
    overwritten by the next. The function may change tensors of its own (weights), but must read
    nothing else that changes, and must never look at a value on the host.
    """

    def __init__(self, function: Callable[..., T], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments
        self._result: T | None = None
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream()

    def __call__(self) -> T:
        """What the function returns for what its tensors hold now."""
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()
        assert self._result is not None
        return self._result

    def _run(self) -> None:
        self._calls += 1
        self._stream.wait_stream(torch.cuda.current_stream())
        if self._calls <= _EAGER_CALLS:
            with torch.cuda.stream(self._stream):
                self._result = self._function(*self._arguments)
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._result = self._function(*self._arguments)
            self._graph = graph
            graph.replay()
        torch.cuda.current_stream().wait_stream(self._stream)


class GraphedByShape:
    """A function of tensors, each set of shapes a graph of its own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._graphs: dict[tuple[Any, ...], tuple[list[Tensor], Graphed[Any]]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Like the function: arguments are nests of tensors on one GPU."""
        given = tensors_of(arguments)
        key = tuple((x.shape, x.dtype) for x in given)
        if key not in self._graphs:
            fixed = map_tensors(torch.empty_like, arguments)
            self._graphs[key] = tensors_of(fixed), Graphed(self._function, *fixed)
        targets, graphed = self._graphs[key]
        for target, x in zip(targets, given, strict=True):
            target.copy_(x, non_blocking=True)
        return graphed()
