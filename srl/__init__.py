"""SRL: distributed reinforcement learning as a dataflow graph.

    envs/ --> workers/actor == streams/inference ==> workers/policy
                  |        <====== actions ========      ^
          streams/samples                        streams/parameters
                  |                                      |
                  +--------> workers/trainer ------------+
                             (learning/ runs algorithms/)

Workers are the nodes, streams the edges; where a worker runs is configuration.
"""

from typing import TYPE_CHECKING, Any

from srl.core.version import VERSION

if TYPE_CHECKING:
    from srl.api import LoadedPolicy, Run, evaluate_run, export_run, load, play_run, resume, train

__version__ = VERSION
__all__ = [
    "LoadedPolicy",
    "Run",
    "evaluate_run",
    "export_run",
    "load",
    "play_run",
    "resume",
    "train",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: an actor imports srl too, and must stay small and without torch.
    if name in __all__:
        from srl import api

        return getattr(api, name)
    raise AttributeError(f"module 'srl' has no attribute {name!r}")
