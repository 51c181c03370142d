"""Names the bottleneck in words, from the time splits of the workers."""

from collections.abc import Mapping

Split = Mapping[str, float]
"""Where a worker kind's time went: name to seconds."""


def shares(split: Split) -> dict[str, float]:
    """Each part of a split as a share of its sum, largest first."""
    total = sum(split.values())
    if total <= 0:
        return {}
    return {k: v / total for k, v in sorted(split.items(), key=lambda item: -item[1])}


def name_bottleneck(splits: Mapping[str, Split], *, takes_turns: bool = False) -> str:
    """One sentence: which worker kind holds the others back, and what would help.

    Args:
        splits: worker kind (`actor`, `policy`, `buffer`, `trainer`) to its time split.
        takes_turns: whether all of them are one process, where nobody can wait for another.
    """
    if takes_turns:
        return _of_one_process(splits)
    actor, trainer = shares(splits.get("actor", {})), shares(splits.get("trainer", {}))
    policy = shares(splits.get("policy", {}))
    if not actor or not trainer:
        return "not known yet"
    starved = trainer.get("wait_for_batch", 0.0) + trainer.get("wait_for_ranks", 0.0)
    held = actor.get("wait_for_credit", 0.0)
    unanswered = actor.get("wait_for_action", 0.0)
    buffer = shares(splits.get("buffer", {}))
    idle = sum(share for name, share in buffer.items() if name.startswith("wait"))
    if buffer and idle < 0.2 and min(held, starved) > 0.1:
        return (
            f"replay: buffers work {1 - idle:.0%} of their time, the trainer waits {starved:.0%} of its own "
            f"for draws, and actors {held:.0%} of theirs for leave to go on; more --buffers.count helps"
        )
    if held > starved and held > 0.1:
        replaying = trainer.get("keep", 0.0) + trainer.get("draw", 0.0)
        beside = f" ({replaying:.0%} for replay, which --buffers.count 1 does beside it)"
        return (
            f"learning: the trainer works {1 - starved:.0%} of its time{beside if replaying > 0.2 else ''} "
            f"and actors wait {held:.0%} of theirs for leave to go on; fewer epochs, larger minibatches, "
            "more --threads or --trainers.count help"
        )
    if unanswered > 0.3 and policy:
        busy = 1 - policy.get("wait_for_requests", 0.0)
        return (
            f"inference: actors wait {unanswered:.0%} of their time for actions (policy workers "
            f"are busy {busy:.0%}); more --actors.groups, --policies.count or --inference inline "
            "help"
        )
    waiting = sum(share for name, share in actor.items() if name.startswith("wait"))
    if max(starved, waiting) < 0.1:
        return (
            f"the cores: nobody waits for another (the trainer {starved:.0%} of its time, actors "
            f"{waiting:.0%}); more cores help, or a cheaper env, network or update"
        )
    working = {k: v for k, v in actor.items() if not k.startswith("wait")}
    busiest = next(iter(working), "env")
    return (
        f"sampling: the trainer waits {starved:.0%} of its time for blocks; actors spend most "
        f"of theirs on {busiest} ({working.get(busiest, 0.0):.0%}); more --actors.count helps "
        "where cores are free"
    )


def _of_one_process(splits: Mapping[str, Split]) -> str:
    parts = {(kind, name): value for kind in splits for name, value in splits[kind].items()}
    total = sum(parts.values())
    if total <= 0:
        return "not known yet"
    (kind, name), most = max(parts.items(), key=lambda item: item[1])
    share = sum(splits[kind].values()) / total
    return (
        f"one process: {kind}s take {share:.0%} of its time, {name} alone {most / total:.0%}; --launcher local has "
        "actors and trainers work side by side"
    )
