"""The parts of bench/learning.py."""
