"""GRPO under three loss normalisations in a harness that splits rollouts: `python -m experiments.split`."""
