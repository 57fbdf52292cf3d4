"""Experiments that docs/experiments.md reports on, each reproducible by one command from the repository's root."""
