"""Training loops, sources and evaluation."""
