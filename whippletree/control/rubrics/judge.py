"""Asking a judge: votes, retries, limits, and what is known already.

    attempts ─► vote 1 (own order, own seed) ─► known? ─┬─► read again ────────────────────────────────────┐
             ─► vote 2 ...                              └─► ask ─► usable? ─► kept ─────────────────────────┴─► mean or median
                                                             ▲        └─ no: kept as such, told, asked again (tries)
                                                             └── busy or absent: wait, at least Retry-After (limit)

Who waits for whom: an ask waits for its turn (`at_once`), then for the endpoint, at most `limit` seconds in all once it has its
turn. One who asks what is being asked already waits for that answer.

Invariants (tests/control/test_rubric_judge.py):
- a score is given by usable answers to all votes, or VerifierError says why there is none; it is never a guess;
- what a request in flight, or one of an earlier process, has answered is not asked again;
- the order in which attempts were shown is undone: each score is that of its own attempt.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import statistics
from collections.abc import Sequence
from contextlib import aclosing, suppress
from weakref import WeakValueDictionary

import msgspec

from whippletree.control.rubrics.config import Criterion, RubricConfig
from whippletree.control.rubrics.prompt import Evidence, Question, question
from whippletree.control.rubrics.replies import Replies
from whippletree.control.rubrics.reply import Unusable, Verdict, read_points, read_ranking
from whippletree.engines.hosted import HostedEngine
from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable, VerifierError
from whippletree.types import ChatRequest, ChatTurn, Message, RubricScore, Sampling

FIRST_DELAY = 0.5  # seconds before a busy endpoint is asked again; doubled each time
LONGEST_DELAY = 30.0  # seconds
QUOTED = 300  # characters of an unusable answer


class Answer(msgspec.Struct, frozen=True):
    """A usable answer, read: its key, its text, what it says of the attempts as they were shown, and whether it was known."""

    key: str
    text: str
    verdicts: tuple[Verdict, ...]
    known: bool


class Judge:
    """The judge of one rubric. For one event loop; `close` it."""

    def __init__(self, rubric: RubricConfig, replies: Replies) -> None:
        """Raises ConfigurationError where the judge's key cannot be read or its URL is none."""
        self.rubric = rubric
        self.digest = rubric.digest()
        self._replies = replies
        self._engine = HostedEngine(rubric.judge, name=f"judge of {rubric.name}")
        self._room = asyncio.Semaphore(rubric.at_once)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._structured = rubric.structured == "auto"

    async def close(self) -> None:
        """Close the connections."""
        await self._engine.close()

    async def scores(
        self, attempts: Sequence[Evidence], criteria: Sequence[Criterion], *, seed: str
    ) -> list[tuple[RubricScore, str]]:
        """The score of each attempt, with the last answer's text. `seed` decides on the orders in which they are shown.

        Raises VerifierError, StoreError, ConfigurationError (a template that fails).
        """
        rubric = self.rubric
        if not criteria and rubric.gives == "points":
            raise VerifierError(f"rubric {rubric.name} has no criteria for this task", f"write them to {rubric.task_criteria}")
        if rubric.gives == "ranking" and len(attempts) == 1:
            return [(self._score([Verdict(score=0.5, why="there is no other attempt")], ()), "")]
        orders = [self._order(len(attempts), f"{seed}/{vote}") for vote in range(rubric.votes)]
        tasks = [
            asyncio.create_task(self._vote([attempts[place] for place in order], criteria, vote))
            for vote, order in enumerate(orders)
        ]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        shown = [dict(zip(order, answer.verdicts, strict=True)) for order, answer in zip(orders, answers, strict=True)]
        return [
            (self._score([of_vote[place] for of_vote in shown], answers), answers[-1].text) for place in range(len(attempts))
        ]

    @staticmethod
    def _order(count: int, seed: str) -> list[int]:
        order = list(range(count))
        random.Random(seed).shuffle(order)
        return order

    def _score(self, verdicts: Sequence[Verdict], answers: Sequence[Answer]) -> RubricScore:
        combine = statistics.fmean if self.rubric.combine == "mean" else statistics.median
        names = verdicts[-1].criteria
        return RubricScore(
            name=self.rubric.name,
            rubric=self.digest,
            model=self._engine.model,
            score=float(combine([verdict.score for verdict in verdicts])),
            criteria={name: float(combine([verdict.criteria[name] for verdict in verdicts])) for name in names},
            votes=tuple(verdict.score for verdict in verdicts),
            why=verdicts[-1].why,
            requests=tuple(answer.key for answer in answers),
            cached=all(answer.known for answer in answers),
        )

    async def _vote(self, attempts: Sequence[Evidence], criteria: Sequence[Criterion], vote: int) -> Answer:
        asked = question(self.rubric, criteria, attempts)
        key = self._key(asked, vote)
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with turn:
            known = await asyncio.to_thread(self._replies.find, key)
            if known is not None:
                with suppress(Unusable):  # of a version that read answers otherwise
                    return Answer(key, known, self._read(known, asked, criteria), True)
            async with self._room:
                text = await self._limited(asked, criteria, vote, key)
            return Answer(key, text, self._read(text, asked, criteria), False)

    def _key(self, asked: Question, vote: int) -> str:
        told = (self._engine.model, self.digest, asked.messages, asked.schema, vote)
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:32]

    def _read(self, text: str, asked: Question, criteria: Sequence[Criterion]) -> tuple[Verdict, ...]:
        """Raises Unusable."""
        if self.rubric.gives == "ranking":
            return read_ranking(text, asked.labels)
        return read_points(text, asked.labels, criteria)

    async def _limited(self, asked: Question, criteria: Sequence[Criterion], vote: int, key: str) -> str:
        said: list[str] = []
        try:
            async with asyncio.timeout(self.rubric.limit):
                return await self._usable(asked, criteria, vote, key, said)
        except TimeoutError:
            last = f"; the last trouble: {said[-1]}" if said else ""
            raise VerifierError(
                f"no usable answer within {self.rubric.limit:g} s{last}", "look at the judge's endpoint, or raise limit"
            ) from None

    async def _usable(self, asked: Question, criteria: Sequence[Criterion], vote: int, key: str, said: list[str]) -> str:
        """Ask until an answer is usable. What goes wrong meanwhile is added to `said`."""
        messages, tries = asked.messages, 0
        while True:
            await self._check_budget()
            text, tokens = await self._patiently(messages, asked, vote, key, said)
            problem = ""
            try:
                self._read(text, asked, criteria)
            except Unusable as error:
                problem = str(error)
            await asyncio.to_thread(
                self._replies.keep,
                *(key, text),
                rubric=self.rubric.name,
                model=self._engine.model,
                tokens=tokens,
                problem=problem,
            )
            if not problem:
                return text
            said.append(problem)
            tries += 1
            if tries >= self.rubric.tries:
                raise VerifierError(
                    f"{tries} answers of the judge were unusable: {problem}; the last one begins: {text[:QUOTED]!r}",
                    "try another judge, a larger max_tokens or a simpler rubric",
                )
            wrong = (
                f"This cannot be used: {problem}. Answer again, with the one JSON object that was asked for and nothing else."
            )
            messages = (*asked.messages, Message(role="assistant", content=text), Message(role="user", content=wrong))

    async def _check_budget(self) -> None:
        most = self.rubric.most_tokens
        if most and (used := await asyncio.to_thread(self._replies.tokens, self.rubric.name)) >= most:
            raise VerifierError(f"rubric {self.rubric.name} has used {used} tokens", f"raise most_tokens ({most})")

    async def _patiently(
        self, messages: tuple[Message, ...], asked: Question, vote: int, key: str, said: list[str]
    ) -> tuple[str, int]:
        """One answer and its tokens, however often a busy endpoint has to be asked."""
        delay, structured = FIRST_DELAY, self._structured
        while True:
            try:
                found = await self._turn(messages, asked if structured else None, vote, key)
            except EngineUnavailable as error:
                said.append(str(error))
                await asyncio.sleep(max(delay, error.retry_after))
                delay = min(2 * delay, LONGEST_DELAY)
            except ContextOverflow as error:
                raise VerifierError(f"the question is too long for the judge: {error.cause}", "lower characters") from error
            except EngineError as error:
                if not structured:
                    raise VerifierError(f"the judge refuses the question: {error.cause}", error.next_step) from error
                said.append(str(error))
                structured = False  # perhaps it was the schema
            else:
                self._structured = self._structured and structured
                return found

    async def _turn(self, messages: tuple[Message, ...], schema: Question | None, vote: int, key: str) -> tuple[str, int]:
        request = ChatRequest(model=self._engine.model, messages=messages, schema=schema.schema if schema else None)
        sampling = Sampling(
            temperature=self.rubric.temperature,
            top_p=1.0,
            max_tokens=self.rubric.max_tokens,
            seed=vote if self.rubric.votes > 1 else None,
        )
        text, tokens = "", 0
        turn = ChatTurn(request_id=f"{key}-{vote}", request=request, sampling=sampling)
        async with aclosing(self._engine.chat(turn)) as chunks:
            async for chunk in chunks:
                text += "".join(delta.content for delta in chunk.deltas)
                tokens = max(tokens, chunk.prompt_tokens + chunk.sampled_tokens)
        return self._engine.http.clean(text), tokens  # whatever the endpoint sends back, its key is kept nowhere
