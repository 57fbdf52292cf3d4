"""Losses of the learner: one function each, over per-token tensors. docs/formulas.md has their formulas."""
