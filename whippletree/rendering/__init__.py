"""Messages to tokens and back."""

from whippletree.rendering.config import RenderingConfig
from whippletree.rendering.renderer import ChatRenderer, load_renderer
from whippletree.rendering.selfcheck import selfcheck

__all__ = ["ChatRenderer", "RenderingConfig", "load_renderer", "selfcheck"]
