"""One model trained through three real harnesses or through one: `python -m experiments.multi_harness`."""
