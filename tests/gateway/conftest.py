"""The fixtures of a gateway on real parts; see gateway_world."""

from gateway_world import make_direct, make_world, model_dir, recordings, renderer

__all__ = ["make_direct", "make_world", "model_dir", "recordings", "renderer"]
