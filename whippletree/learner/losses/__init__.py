"""Losses of the learner: one function each, over per-token tensors. docs/learner.md has their formulas."""
