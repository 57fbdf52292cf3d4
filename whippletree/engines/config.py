"""Settings of engines: one table [engine], whose `kind` says which.

Invariants (tests/engines/test_completions_connect.py): every kind is told by its tag, and an unknown kind or key is refused.
"""

from __future__ import annotations

from typing import Any, Literal

from whippletree.configuration import Amount, Config, Count, Natural
from whippletree.engines.embedded.config import EmbeddedConfig

__all__ = [
    "EmbeddedConfig",
    "EngineConfig",
    "Faults",
    "HostedConfig",
    "ScriptedConfig",
    "SglangConfig",
    "VllmConfig",
]


class VllmConfig(Config, tag_field="kind", tag="vllm"):
    """A vLLM server: one that runs already (`url`), or one that the run starts with `python`."""

    url: str = ""
    """Root URL of a running server (http://10.0.0.7:8000), started with the flags that docs/vllm.md lists; empty: start one."""

    python: str = ""
    """Interpreter of the environment that vLLM is installed in, when the run starts the server."""

    model: str = ""
    """Directory of the model in Hugging Face layout; empty: the run fills in its own."""

    name: str = "policy"
    """Name under which the model is served."""

    host: str = "127.0.0.1"
    """Address that a started server binds. Anyone who reaches it can swap the weights, so keep it on loopback."""

    port: Natural = 8100
    """TCP port of a started server."""

    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the served weights. On CPU float32 agrees with the learner to about 3e-5, bfloat16 to about 0.05 on average."""

    context: Natural = 0
    """Longest prompt + answer in tokens; 0 takes the model's own limit."""

    max_running: Natural = 64
    """Requests computed at once."""

    eager: bool = True
    """Compute without compiled graphs: starts sooner. False is faster on GPUs."""

    threads: Natural = 1
    """CPU backend: OpenMP threads."""

    kv_cache_gib: Natural = 2
    """CPU backend: memory for the KV cache, GiB."""

    arguments: list[str] = []
    """More command line arguments for a started server, such as "--tensor-parallel-size=4". They win over the others."""

    environment: dict[str, str] = {}
    """More environment variables for a started server."""


class SglangConfig(Config, tag_field="kind", tag="sglang"):
    """An SGLang server that runs already, started with the flags that docs/sglang.md lists."""

    url: str = ""
    """Root URL of the server (http://10.0.0.7:30000)."""

    name: str = "policy"
    """Name under which the model is served."""

    api_key_file: str = ""
    """File with the server's --api-key, if it has one; empty: none is sent."""

    context: Natural = 0
    """Longest prompt + answer in tokens; 0 asks the server."""

    experts_per_token: Natural = 0
    """Of a mixture-of-experts model started with --enable-return-routed-experts: how many experts a token uses
    (num_experts_per_tok in its config.json). Routed experts are then asked for and recorded; 0 leaves them out."""


class HostedConfig(Config, tag_field="kind", tag="hosted"):
    """A chat API that someone else runs, for evaluation: it gives no token ids, so nothing sampled from it is trained."""

    base_url: str = ""
    """Root of the API, with /v1: https://api.example.com/v1."""

    model: str = ""
    """The model's name at the API."""

    api_key_file: str = ""
    """File whose first line is the key. The key itself is never part of a configuration."""

    api_key_env: str = ""
    """Name of the environment variable that holds the key, where there is no file."""

    context: Count = 131_072
    """Longest prompt + answer in tokens; APIs do not tell it."""

    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the field that limits the answer: OpenAI's reasoning models want max_completion_tokens."""

    reasoning_field: Literal["", "reasoning", "reasoning_content"] = ""
    """Field in which earlier thinking is sent back; empty: it is not sent."""

    logprobs: bool = False
    """Ask for logprobs. Many APIs refuse the request when they are asked for."""

    extra: dict[str, Any] = {}
    """More fields for every request body, such as reasoning_effort = "low"."""

    omit: list[str] = []
    """Fields that the API refuses and that are therefore left out, such as "temperature" or "stream_options"."""

    silence: Amount = 600.0
    """Seconds without a byte after which a call counts as failed."""


class Faults(Config):
    """What goes wrong on purpose, to test everything that must survive it. Counts are of requests, from the first one on."""

    unavailable: Natural = 0
    """This many requests find no engine (status 503 over HTTP)."""

    broken: Natural = 0
    """This many requests, after those, fail with an error that is no word of retry (status 500 over HTTP)."""

    reset_after: Natural = 0
    """Every stream is cut off after this many tokens; 0 means never."""

    resets: Natural = 0
    """Only this many streams are cut off; 0 means every one."""

    error_after: Natural = 0
    """Every stream ends in an error after this many tokens (over HTTP inside a reply of status 200); 0 means never."""

    errors: Natural = 0
    """Only this many streams end in an error; 0 means every one."""

    drop_ids: bool = False
    """Replies carry logprobs but no token ids."""

    no_logprobs: bool = False
    """Replies carry token ids but no logprobs."""

    first_token_seconds: Amount = 0.0
    """The first token takes this long."""

    token_seconds: Amount = 0.0
    """Every token takes this long."""


class ScriptedConfig(Config, tag_field="kind", tag="scripted"):
    """No model: answers drawn from a seeded random distribution or from a script, for dry runs of everything else."""

    url: str = ""
    """Root URL of a scripted engine that runs as a process (docs/engine.md); empty: one inside each process that asks."""

    host: str = "127.0.0.1"
    """Address that the process binds."""

    port: Natural = 0
    """TCP port of the process; 0 takes a free one."""

    name: str = "policy"
    """Name under which the model is listed."""

    seed: Natural = 0
    """Seed of the distribution."""

    vocabulary: Natural = 512
    """Token ids run from 0 to this, exclusive. With `model`, its tokenizer's vocabulary is used instead."""

    context: Natural = 1024
    """Longest prompt + answer in tokens."""

    script: str = ""
    """JSON file of answers: a list whose entries are texts or lists of token ids; empty: random answers."""

    repeat: bool = True
    """Begin again when all answers of the script are used up; false: then requests fail."""

    model: str = ""
    """Directory of the model whose tokenizer encodes answers that are texts."""

    stop_token: str = "<|im_end|>"
    """Token put after an answer that is a text; empty: none."""

    chunk_tokens: Natural = 1
    """Tokens in one event of a stream."""

    faults: Faults = Faults()
    """What goes wrong."""


EngineConfig = EmbeddedConfig | VllmConfig | SglangConfig | HostedConfig | ScriptedConfig
