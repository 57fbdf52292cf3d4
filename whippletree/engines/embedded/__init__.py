"""The embedded torch engine: a server process of its own (`python -m whippletree.engines.embedded`) and its client."""
