"""Open the teacher of a run: start its engine where the run is to, compare tokenizers, connect.

Invariants (tests/loop/test_teaching.py):
- a teacher whose tokenizer is not the policy's, or cannot be compared with it, is refused before anything is scored;
- an engine that was started ends with whoever started it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from whippletree.engines.connect import connect
from whippletree.engines.hosted import read_key
from whippletree.engines.process import Ready
from whippletree.engines.transport import Transport
from whippletree.errors import ConfigurationError, EngineError, ProcessError
from whippletree.loop.config import TeacherConfig
from whippletree.loop.teacher import Teacher
from whippletree.protocols import Store
from whippletree.traces import TracesConfig
from whippletree.types import Struct

START_SECONDS = 300.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1
TEXT = (
    'The 12 files in /usr/lib don\u2019t (yet) match:\n\tfor x in {1..3}; do echo "$x" >> out.txt; done'
    "  # na\u00efve \u4f60\u597d \U0001f642"
)


class TokenizeRequest(Struct, omit_defaults=False):
    """Body of vLLM's POST /tokenize.

    Example: TokenizeRequest(model="teacher", prompt="hello")
    """

    model: str
    prompt: str
    add_special_tokens: bool = False


class Tokenized(Struct):
    """Its reply.

    Example: Tokenized(tokens=[15339])
    """

    tokens: list[int]


@contextmanager
def opened_teacher(
    config: TeacherConfig, store: Store, traces: TracesConfig, *, policy: Path, directory: Path
) -> Iterator[Teacher]:
    """The run's teacher. `policy`: directory of the policy's model; `directory`: of the run, for the engine's log and ready
    file. Raises ConfigurationError, ProcessError, EngineError."""
    key = read_key(config.api_key_file) if config.api_key_file else ""
    if config.directory:
        compare_directories(policy, Path(config.directory))
    with _address(config, directory) as url:
        if not config.directory:
            asyncio.run(compare_with_server(policy, url, config.name, key))
        engine = connect(config.kind, url, model=config.name, api_key=key, name="teacher")
        teacher = Teacher(engine, store, config, traces)
        try:
            yield teacher
        finally:
            teacher.close()


def compare_directories(policy: Path, teacher: Path) -> None:
    """Raises ConfigurationError unless both models have the same tokenizer."""
    ours, theirs = (_tokenizer(directory) for directory in (policy, teacher))
    own, other = (tokenizer.get_vocab(with_added_tokens=True) for tokenizer in (ours, theirs))
    if own != other:
        differ = next(token for token in {**own, **other} if own.get(token) != other.get(token))
        raise ConfigurationError(
            f"the teacher in {teacher} has another tokenizer than the policy: {differ!r} is token {other.get(differ)}, not "
            f"{own.get(differ)}",
            "give a teacher with the policy's tokenizer",
        )
    if ours.encode(TEXT, add_special_tokens=False).ids != theirs.encode(TEXT, add_special_tokens=False).ids:
        raise ConfigurationError(
            f"the teacher in {teacher} splits text into other tokens than the policy",
            "give a teacher with the policy's tokenizer",
        )


async def compare_with_server(policy: Path, url: str, name: str, key: str) -> None:
    """The same, of a server that has vLLM's /tokenize."""
    http = Transport("teacher", url.rstrip("/").removesuffix("/v1"), api_key=key)
    wanted = _tokenizer(policy).encode(TEXT, add_special_tokens=False).ids
    try:
        found = await http.call("POST", "/tokenize", Tokenized, TokenizeRequest(model=name, prompt=TEXT))
    except EngineError as error:
        raise ConfigurationError(
            f"the teacher at {url} does not say how it splits text: {error.cause}",
            "set teacher.directory to its model's directory",
        ) from error
    finally:
        await http.close()
    if found.tokens != wanted:
        raise ConfigurationError(
            f"the teacher at {url} splits text into other tokens than the policy", "give a teacher with the policy's tokenizer"
        )


def _tokenizer(directory: Path) -> Tokenizer:
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise ConfigurationError(f"{file} is missing, so tokenizers cannot be compared", "give a model with its tokenizer")
    return Tokenizer.from_file(str(file))


@contextmanager
def _address(config: TeacherConfig, directory: Path) -> Iterator[str]:
    """URL of the server; of an engine of our own while the body runs, where none is given."""
    if config.url:
        yield config.url
        return
    ready = directory / "logs" / "teacher.ready.json"
    ready.parent.mkdir(parents=True, exist_ok=True)
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "whippletree.engines.embedded", "--model", config.directory, "--name", config.name]
    command += ["--context", str(config.context), "--ready-file", str(ready), "--exit-with-parent", str(os.getpid())]
    log = directory / "logs" / "teacher.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ})
    try:
        yield _wait_for(process, ready, log)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    """Its URL, once it serves. Raises ProcessError."""
    deadline = time.monotonic() + START_SECONDS
    while not ready.is_file():
        if process.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(encoding="utf-8", errors="replace")[-500:]
            raise ProcessError(f"the teacher's engine did not start: {last}", f"read {log}")
        time.sleep(POLL_SECONDS)
    address = msgspec.json.decode(ready.read_bytes(), type=Ready)
    return f"http://{address.host}:{address.port}"
