"""The embedded torch engine."""
