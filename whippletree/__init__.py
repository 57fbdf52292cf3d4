"""Whippletree: train one model through many unmodified agent harnesses."""

__version__ = "0.1.0"
