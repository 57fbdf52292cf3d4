"""Machines of attempts, one file per backend."""
