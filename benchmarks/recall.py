"""The experiment that needs a memory, by PPO with any (`--algorithm.memory`) or none: the recipe is `recall-gtrxl`."""

from dataclasses import replace

from srl.algorithms.ppo import PPOConfig
from srl.core.experiment import Experiment
from srl.experiments.recall import recall_gtrxl


def recall() -> Experiment[PPOConfig]:
    """Return 1 with a memory at 60k env steps; at most 0.25, a guess of four, without."""
    return replace(recall_gtrxl(), name="recall")
