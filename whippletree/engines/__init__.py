"""Inference engines behind one token-level protocol (whippletree.protocols.Engine)."""
