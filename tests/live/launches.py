"""How each real coding agent is started headless and pointed at the gateway. Plain data; nothing here is specific to a test.

Inside a sandbox the gateway is at 127.0.0.1:8000 and the agents lie below /opt/harnesses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

ROOT = "http://127.0.0.1:8000"
AGENTS = "/opt/harnesses"
HOME = "/home/agent"


@dataclass(frozen=True)
class Launch:
    """One agent. `start(key, prompt)` gives argv, environment and files (path inside, text)."""

    name: str
    dialect: str
    tool: str
    start: Callable[[str, str], tuple[list[str], dict[str, str], dict[str, str]]]
    arguments: Callable[[str], dict[str, object]] = field(default=lambda command: {"command": command})
    folder: str = ""
    side_calls: bool = False


def _binary(folder: str, name: str) -> str:
    return f"{AGENTS}/{folder}/node_modules/.bin/{name}"


def claude_code(key: str, prompt: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Anthropic Messages, four tools, no attribution line."""
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL")
    models += ("ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL")
    switches = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "IS_SANDBOX")
    switches += ("DISABLE_ERROR_REPORTING", "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS", "DISABLE_PROMPT_CACHING")
    environment = {
        "ANTHROPIC_BASE_URL": ROOT,
        "ANTHROPIC_API_KEY": key,
        "CLAUDE_CONFIG_DIR": f"{HOME}/.claude",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        **dict.fromkeys(models, "policy"),
        **dict.fromkeys(switches, "1"),
    }
    argv = [_binary("claude-code", "claude"), "-p", prompt, "--output-format", "json", "--dangerously-skip-permissions"]
    return [*argv, "--tools", "Bash,Read,Edit,Write"], environment, {}


def claude_code_full(key: str, prompt: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """The same with all its tools, prompt caching and attribution line: what a user gets without settings."""
    argv, environment, files = claude_code(key, prompt)
    for name in ("CLAUDE_CODE_ATTRIBUTION_HEADER", "DISABLE_PROMPT_CACHING", "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS"):
        del environment[name]
    return argv[:-2], environment, files


def codex(key: str, prompt: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """OpenAI Responses."""
    config = f"""
model = "policy"
model_provider = "whippletree"
check_for_update_on_startup = false
web_search = "disabled"
[model_providers.whippletree]
name = "whippletree"
base_url = "{ROOT}/v1"
env_key = "WHIPPLETREE_KEY"
wire_api = "responses"
[features]
plugins = false
apps = false
multi_agent = false
goals = false
skills = false
remote_plugin = false
daemon_auto_start = false
[analytics]
enabled = false
[history]
persistence = "none"
"""
    argv = [_binary("codex", "codex"), "exec", "--json", "--skip-git-repo-check"]
    argv += ["--dangerously-bypass-approvals-and-sandbox", prompt]
    return argv, {"CODEX_HOME": f"{HOME}/.codex", "WHIPPLETREE_KEY": key}, {f"{HOME}/.codex/config.toml": config}


def gemini_cli(key: str, prompt: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Gemini generateContent."""
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False, "disableAutoUpdate": True},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    environment = {"GEMINI_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": ROOT, "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    argv = [_binary("gemini-cli", "gemini"), "-m", "gemini-2.5-pro", "--yolo", "--output-format", "json", "-p", prompt]
    return argv, environment, {f"{HOME}/.gemini/settings.json": json.dumps(settings)}


def _opencode(package: str, base: str) -> Callable[[str, str], tuple[list[str], dict[str, str], dict[str, str]]]:
    def start(key: str, prompt: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
        model = {"name": "policy", "tool_call": True, "limit": {"context": 200000, "output": 8192}}
        provider = {
            "npm": package,
            "name": "whippletree",
            "options": {"baseURL": base, "apiKey": key},
            "models": {"policy": model},
        }
        config = {
            "model": "whippletree/policy",
            "small_model": "whippletree/policy",
            "autoupdate": False,
            "share": "disabled",
            "permission": {"*": "allow"},
            "provider": {"whippletree": provider},
        }
        switches = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")
        environment = {f"OPENCODE_DISABLE_{name}": "1" for name in switches}
        environment |= {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}
        argv = [_binary("opencode", "opencode"), "run", "--format", "json", "--model", "whippletree/policy", prompt]
        return argv, environment, {}

    return start


def _pi(api: str, base: str) -> Callable[[str, str], tuple[list[str], dict[str, str], dict[str, str]]]:
    def start(key: str, prompt: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
        model = {"id": "policy", "name": "policy", "reasoning": False, "input": ["text"], "contextWindow": 200000}
        model |= {"maxTokens": 8192, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}
        provider = {"baseUrl": base, "apiKey": "WHIPPLETREE_KEY", "api": api, "models": [model]}
        environment = {"PI_CODING_AGENT_DIR": f"{HOME}/.pi/agent", "PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"}
        environment |= {"PI_TELEMETRY": "0", "WHIPPLETREE_KEY": key}
        argv = [_binary("pi", "pi"), "-p", "--no-session", "--provider", "whippletree", "--model", "policy", prompt]
        return argv, environment, {f"{HOME}/.pi/agent/models.json": json.dumps({"providers": {"whippletree": provider}})}

    return start


def _codex_arguments(command: str) -> dict[str, object]:
    return {"cmd": command}


def _described(command: str) -> dict[str, object]:
    return {"command": command, "description": "write a file"}


LAUNCHES = {
    launch.name: launch
    for launch in (
        Launch("claude-code", "messages", "Bash", claude_code, _described),
        Launch("claude-code-full", "messages", "Bash", claude_code_full, _described, folder="claude-code"),
        Launch("codex", "responses", "exec_command", codex, _codex_arguments),
        Launch("gemini-cli", "gemini", "run_shell_command", gemini_cli, _described),
        Launch("opencode", "chat", "bash", _opencode("@ai-sdk/openai-compatible", f"{ROOT}/v1"), _described, side_calls=True),
        Launch(
            "opencode-messages",
            "messages",
            "bash",
            _opencode("@ai-sdk/anthropic", f"{ROOT}/v1"),
            _described,
            folder="opencode",
            side_calls=True,
        ),
        Launch("pi", "chat", "bash", _pi("openai-completions", f"{ROOT}/v1")),
        Launch("pi-responses", "responses", "bash", _pi("openai-responses", f"{ROOT}/v1"), folder="pi"),
        Launch("pi-messages", "messages", "bash", _pi("anthropic-messages", ROOT), folder="pi"),
        Launch("pi-gemini", "gemini", "bash", _pi("google-generative-ai", f"{ROOT}/v1beta"), folder="pi"),
    )
}
