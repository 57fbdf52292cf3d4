"""The evaluation grid: models x harnesses x tasks x samples, and what the cells say (docs/evaluation.md)."""
