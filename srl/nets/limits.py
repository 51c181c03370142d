"""Bounds that networks share, with torch and without."""

LARGEST_NORMALISED = 10.0
"""Normalised observations are clipped to ±10 (as in OpenAI Baselines)."""

SMALLEST_VARIANCE = 1e-6
"""A constant input is not blown up by more than 1000."""
