"""Mini's model classes with the key of the attempt, and one pool of connections for all attempts of a process.

Mini keeps `model_kwargs` in its trajectory, so a key must not be there: it travels in a client object instead, which litellm
takes per call. That also avoids a client, with its pool and certificates, per key. Imports mini and litellm: seconds, once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import litellm
import openai
from minisweagent.agents.default import DefaultAgent
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

from whippletree.harnesses.config import MiniSettings
from whippletree.harnesses.mini_environment import SandboxEnvironment
from whippletree.protocols import AttemptSpec, SandboxHandle


class GatewayModel(LitellmModel):  # type: ignore[misc]  # mini is not typed here
    """Mini's tool-call model, on a given client."""

    def __init__(self, *, client: openai.OpenAI, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._client = client

    def _query(self, messages: list[dict[str, Any]], **kwargs: Any) -> Any:
        return super()._query(messages, client=self._client, **kwargs)


class GatewayTextModel(LitellmTextbasedModel):  # type: ignore[misc]  # mini is not typed here
    """Mini's text model, on a given client."""

    def __init__(self, *, client: openai.OpenAI, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._client = client

    def _query(self, messages: list[dict[str, Any]], **kwargs: Any) -> Any:
        return super()._query(messages, client=self._client, **kwargs)


class Connection:
    """What the attempts of one process share: a pool of HTTP connections. Safe from any thread."""

    def __init__(self) -> None:
        litellm.telemetry = False
        litellm.suppress_debug_info = True
        self._http = openai.DefaultHttpxClient(trust_env=False)  # no proxy between the harness and the gateway

    def agent(self, spec: AttemptSpec, sandbox: SandboxHandle, settings: MiniSettings, config: dict[str, Any]) -> DefaultAgent:
        """Mini's default agent for one attempt."""
        client = openai.OpenAI(
            api_key=spec.api_key,
            base_url=spec.base_url,
            http_client=self._http,
            max_retries=settings.quick_retries,
            timeout=spec.timeout,
        )
        model_kind = GatewayTextModel if settings.mode == "text" else GatewayModel
        model_config = {key: value for key, value in config["model"].items() if key != "model_class"}
        environment = {key: value for key, value in config["environment"].items() if key != "environment_class"}
        return DefaultAgent(
            model_kind(client=client, **model_config),
            SandboxEnvironment(sandbox=sandbox, **environment),
            output_path=Path(spec.output_dir) / "trajectory.json",
            **config["agent"],
        )
