"""One model trained in one harness or in three: `python -m experiments.harness_mix`."""
