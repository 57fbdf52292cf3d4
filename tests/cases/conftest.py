"""The fixtures of a gateway on real parts, for the cases of what goes wrong in one; see gateway_world."""

from gateway_world import make_direct, make_world, model_dir, renderer

__all__ = ["make_direct", "make_world", "model_dir", "renderer"]
