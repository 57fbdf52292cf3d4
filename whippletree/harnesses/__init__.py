"""Adapters of unmodified agents, one file each."""
