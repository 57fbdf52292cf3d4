"""What bench/harnesses.py measures with: the model's part, a proxy that takes times, whole attempts."""
