"""Action masks: one truth value a choice, `[n]` for Discrete and `[sum(nvec)]` for MultiDiscrete."""

from collections.abc import Iterator

import numpy as np

from srl.core.env import ActionSpace, AgentSpec, Discrete, MultiDiscrete


def mask_size(action: ActionSpace) -> int | None:
    """Truth values of a mask; None where there is nothing to choose from."""
    match action:
        case Discrete(n):
            return n
        case MultiDiscrete(nvec):
            return sum(nvec)
        case _:
            return None


def mask_problem(agent: AgentSpec) -> str | None:
    """What is wrong with the mask that an agent declares; None where nothing is."""
    mask, size = agent.action_mask, mask_size(agent.action)
    if mask is None or mask.shape == (size,):
        return None
    needed = "there is nothing to mask in real numbers" if size is None else f"it must be [{size}]"
    return (
        f"observation {mask.name!r} is the action mask by its name and has the shape "
        f"{list(mask.shape)}, but {needed}, one truth value a choice"
    )


def nothing_allowed(action: ActionSpace, mask: np.ndarray) -> np.ndarray:
    """`[...]` bool: where the masks `[..., size]` leave no choice at all."""
    return np.any([~part.any(-1) for part in _parts(action, mask)], axis=0)


def heed(agent: AgentSpec, actions: np.ndarray, obs: dict[str, np.ndarray]) -> np.ndarray:
    """The actions `[..., *shape]`, each that its mask forbids replaced by the next allowed one.

    `obs` is what is seen where they are taken. Without a mask they stay as they are.
    """
    if agent.action_mask is None:
        return actions
    mask = obs[agent.action_mask.name]
    single = isinstance(agent.action, Discrete)
    columns = actions[..., None] if single else actions
    allowed = np.stack(
        [_next(columns[..., i], part) for i, part in enumerate(_parts(agent.action, mask))], -1
    )
    return allowed[..., 0] if single else allowed


def _next(chosen: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The first of `chosen`, `chosen + 1`, ... that `mask` `[..., n]` allows, around to 0."""
    n = mask.shape[-1]
    order = (chosen[..., None] + np.arange(n)) % n
    further = np.take_along_axis(mask, order, -1).argmax(-1)
    return (chosen + further) % n


def _parts(action: ActionSpace, mask: np.ndarray) -> Iterator[np.ndarray]:
    """The mask of each choice that an action makes, `[..., n]` bool."""
    nvec = action.nvec if isinstance(action, MultiDiscrete) else (mask.shape[-1],)
    start = 0
    for n in nvec:
        yield mask[..., start : start + n].astype(np.bool_)
        start += n
