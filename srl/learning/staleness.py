"""Staleness is a contract: how far ahead of the learner sampling may run.

    a new block may start while   accepted + running < (max_staleness + version + 1) x batch

where `accepted` blocks were delivered and kept, `running` ones are granted and not yet delivered,
`version` counts the batches learned and `batch` the blocks of one. Blocks that were dropped, lost
or abandoned leave the sum at once, else the gate would starve.

A grant made at version v demands rows of at least version v: its block is learned at version
v + max_staleness at the latest, if producers keep their order. What arrives too old because one
did not is dropped, and counted.
"""

import heapq


def granted_limit(*, version: int, batch: int, max_staleness: int, withdrawn: int) -> int:
    """Blocks that may have been granted in all, when `withdrawn` of them will never be learned."""
    return (max_staleness + version + 1) * batch + withdrawn


def is_too_old(*, learned_at: int, oldest_row: int, max_staleness: int) -> bool:
    """Whether a block whose oldest row is of version `oldest_row` may not be learned any more."""
    return learned_at - oldest_row > max_staleness


class Dealer:
    """Deals grants out to producers: the next goes to whoever has the fewest open."""

    def __init__(self, *, num_producers: int) -> None:
        self.limits = [0] * num_producers
        self.delivered = [0] * num_producers
        self.withdrawn = 0
        """Blocks granted that were dropped, lost or abandoned."""
        self.retired = set[int]()
        """Producers that will not come back, or have not come yet."""

    def retire(self, producer: int) -> None:
        """Withdraw what a producer was granted and did not deliver; grant it nothing more.

        Blocks of it that are on their way are still taken: see `deliver`.
        """
        if producer not in self.retired:
            self.retired.add(producer)
            self.withdrawn += max(0, self.limits[producer] - self.delivered[producer])

    def enlist(self, producer: int) -> None:
        """Grant to a producer from now on; nothing was granted to it before."""
        if producer in self.retired and not self.limits[producer]:
            self.retired.remove(producer)

    def deliver(self, producer: int) -> None:
        """Count a block that has arrived."""
        self.delivered[producer] += 1
        if producer in self.retired:  # it was withdrawn, and comes after all
            self.withdrawn -= 1

    def deal(self, allowed: int) -> list[int]:
        """Grant up to so many in all; returns every producer's limit."""
        more = allowed - sum(self.limits)
        if more <= 0 or len(self.retired) == len(self.limits):
            return self.limits
        fewest = [
            (limit - delivered, limit, producer)
            for producer, (limit, delivered) in enumerate(
                zip(self.limits, self.delivered, strict=True)
            )
            if producer not in self.retired
        ]
        heapq.heapify(fewest)
        for _ in range(more):
            still_open, limit, producer = fewest[0]
            heapq.heapreplace(fewest, (still_open + 1, limit + 1, producer))
            self.limits[producer] += 1
        return self.limits


class Gate(Dealer):
    """Deals what the rule allows."""

    def __init__(self, *, num_producers: int, batch: int, max_staleness: int) -> None:
        super().__init__(num_producers=num_producers)
        self.batch = batch
        self.max_staleness = max_staleness
        self.version = 0
        self.base = 0
        """Blocks learned before this gate was opened: those of a resumed run."""

    def rebase(self, version: int) -> None:
        """Start at a recovered version: nothing is accepted or running."""
        self.version = version
        self.base = version * self.batch

    def open(self) -> list[int]:
        """Grant what the rule allows; returns every producer's limit."""
        allowed = granted_limit(
            version=self.version,
            batch=self.batch,
            max_staleness=self.max_staleness,
            withdrawn=self.withdrawn,
        )
        return self.deal(allowed - self.base)
