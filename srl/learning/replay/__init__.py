"""Replay: rows that are kept and drawn again.

    table      rows of all lanes, in the order they happened
    selectors  which windows of them are drawn: alike, by priority, in order
    sum_tree   what prioritised drawing is made of
    limiter    how often, for each row that comes
    replay     all of these together

A trainer draws from it as it would take batches (`learning/replaying.py`).
"""
