"""The dialects that are served."""

from __future__ import annotations

from whippletree.gateway.dialects import Dialect
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.gateway.dialects.gemini import GeminiDialect
from whippletree.gateway.dialects.messages import MessagesDialect
from whippletree.gateway.dialects.responses import ResponsesDialect

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (ChatDialect(), MessagesDialect(), GeminiDialect(), ResponsesDialect())
}
