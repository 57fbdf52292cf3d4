"""Advantages, loss weights and packing plans: pure functions on arrays and metadata."""
