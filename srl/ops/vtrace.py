"""V-trace: returns of a policy from what another one did. `T`: rows in time; `B`: lanes."""

import numpy as np

from srl.ops.checks import check_same_shape
from srl.ops.returns import advantages_and_errors


def vtrace(
    ratios: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    *,
    valid: np.ndarray,
    acting: np.ndarray,
    gamma: float,
    trace_lambda: float,
    weight_clip: float,
    trace_clip: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """V-trace targets and advantages (Espeholt et al. 2018, equation 1 and section 4.2).

    With δ_t = r_t + γ·V_{t+1} − V_t, ρ_t = min(ratio_t, weight_clip), c_t = min(ratio_t, trace_clip):

        v_t = V_t + ρ_t·δ_t + γλ·c_t·(v_{t+1} − V_{t+1})
        A_t = δ_t + γλ·(v_{t+1} − V_{t+1})

    With λ = 1 they are the paper's, A_t = r_t + γ·v_{t+1} − V_t; where all ratios are 1, A are
    generalised advantages and v = V + A. Episodes end, and lanes wait, as in `ops/returns.py`.

    Args:
        ratios: `[T, B]` float32, π(a|s) / μ(a|s): of the policy whose values are wanted, and of
            the one that acted. Rows that are not acted on have no influence.
        rewards: `[T, B]` float32.
        values: `[T+1, B]` float32, state values; row `T` is that of the bootstrap observation.
        terminated: `[T, B]` bool.
        truncated: `[T, B]` bool.
        valid: `[T+1, B]` bool.
        acting: `[T+1, B]` bool.
        gamma: discount of one step.
        trace_lambda: 0 for one-step estimates, 1 for the paper's (λ).
        weight_clip: decides whose values are found: μ's near 0, π's where it is large (ρ̄).
        trace_clip: decides how fast, and with what variance (c̄).

    Returns:
        Targets v `[T, B]` float32; advantages `[T, B]` float32, which a policy gradient weighs
        by its ratio; and `[T, B]` bool: whether they are known.
    """
    check_same_shape(rewards=rewards, ratios=ratios)
    advantages, errors, known = advantages_and_errors(
        rewards,
        values,
        terminated,
        truncated,
        valid=valid,
        acting=acting,
        gamma=gamma,
        decay=gamma * trace_lambda,
        weights=np.minimum(ratios, np.float32(weight_clip)),
        traces=np.minimum(ratios, np.float32(trace_clip)),
    )
    return values[:-1] + errors, advantages, known
