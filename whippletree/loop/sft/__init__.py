"""Supervised fine-tuning on captured successes: choosing, writing, encoding, training (docs/sft.md)."""
