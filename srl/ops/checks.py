"""Shape checks that every function of `ops` makes on entry."""

from typing import Any

from srl.core.errors import SpecError


def check_rank(rank: int, **arrays: Any) -> None:
    """Raise SpecError where a named array or tensor has not `rank` axes."""
    for name, array in arrays.items():
        if array.ndim != rank:
            raise SpecError(f"{name} must have {rank} axes, its shape is {list(array.shape)}")


def check_same_shape(**arrays: Any) -> None:
    """Raise SpecError where the named arrays or tensors differ in shape."""
    (first, *rest), (model, *others) = arrays.keys(), arrays.values()
    for name, array in zip(rest, others, strict=True):
        if array.shape != model.shape:
            raise SpecError(
                f"{name} has shape {list(array.shape)}, {first} has {list(model.shape)}: "
                "they must be equal"
            )
