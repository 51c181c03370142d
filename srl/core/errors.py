"""The errors SRL raises: each message says what happened, to whom, and what to do."""

from srl.core.fault import EnvFault


class SrlError(Exception):
    """Anything SRL reports on purpose; its text is written for the person who runs it."""


class ConfigError(SrlError):
    """The request cannot be carried out: found before anything was started."""


class SpecError(SrlError):
    """Two sides of a stream, or an array and its schema, do not agree."""


class EnvError(SrlError):
    """An environment raised, did not come back, or returned something its own spaces forbid."""

    def __init__(self, message: str, faults: tuple[EnvFault, ...] = ()) -> None:
        """With `faults` where the rest of the batch is sound: see `Env.step`."""
        super().__init__(message)
        self.faults = faults


class StreamError(SrlError):
    """A stream was used out of order, or its peer went away or did not answer in time."""


class CheckpointError(SrlError):
    """A checkpoint cannot be read, or does not fit what it is loaded into."""


class WorkerError(SrlError):
    """A worker process died, hung or reported an error."""
