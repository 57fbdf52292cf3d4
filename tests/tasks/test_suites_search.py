"""whippletree/tasks/suites/search"""

from __future__ import annotations

import json
import random

import pytest

from whippletree.tasks import check_task, load_task
from whippletree.tasks.suites.config import SearchFamily
from whippletree.tasks.suites.search.questions import CHAINS, ask, follow
from whippletree.tasks.suites.search.suite import corpus, search_suite
from whippletree.tasks.suites.search.tool import SHOWN, search
from whippletree.tasks.suites.search.worlds import build_plain_world, build_world
from whippletree.tasks.trial import run_trial
from whippletree.tasks.writing import Limits, write_draft

WORLD = build_world("a", 24)
DOCUMENTS = [{"id": name, "title": title, "text": text} for name, title, text in WORLD.documents]


def test_the_same_seed_gives_the_same_world():
    assert corpus(build_world("a", 24)) == corpus(WORLD) != corpus(build_world("b", 24))
    assert 100 <= len(WORLD.documents) <= 130
    assert len({title for _, title, _ in WORLD.documents}) == len(WORLD.documents) == len(WORLD.entities)


def test_each_fact_is_in_its_document_and_leads_somewhere():
    texts = {title: text for _, title, text in WORLD.documents}
    for entity in WORLD.entities.values():
        for fact, value in entity.facts.items():
            assert value in texts[entity.name], (entity.name, fact)
            if fact in ("river", "town", "school", "birthplace", "founder", "seat"):
                assert value in WORLD.entities


@pytest.mark.parametrize("steps", CHAINS)
def test_a_question_takes_as_many_documents_as_it_has_steps(steps: int):
    texts = {title: text for _, title, text in WORLD.documents}
    for seed in range(40):
        asked = ask(random.Random(seed), WORLD, steps)
        assert len(set(asked.path)) == len(asked.path) == steps
        names = [name for name in asked.path if name in asked.words]
        if "earlier" in asked.words:
            assert names == list(asked.path[:2]) and asked.answer in asked.path[2:]
            continue
        assert names == [asked.path[0]] and asked.answer not in asked.words
        assert asked.answer in texts[asked.path[-1]]
        assert not any(asked.answer in texts[name] for name in asked.path[:-1])


def test_chains_follow_facts_that_are_there():
    for chains in CHAINS.values():
        for chain in chains:
            path, answer = follow(WORLD, WORLD.of(chain.start)[0], chain.facts)
            assert len(path) == len(chain.facts) and answer


def test_search_finds_each_document_by_its_title_first():
    for document in DOCUMENTS[::5]:
        found = search(DOCUMENTS, document["title"])
        assert document["id"] in [name for name, _, _ in found[:SHOWN]]
        assert len(found) <= SHOWN


def test_rarer_words_count_more_and_words_are_stemmed():
    documents = [
        {"id": "1", "title": "a", "text": "the river runs by the town"},
        {"id": "2", "title": "b", "text": "the towns sell lanterns in the town of the town"},
        {"id": "3", "title": "c", "text": "the town has a town hall"},
        {"id": "4", "title": "d", "text": "the town has a town hall"},
    ]
    assert next(name for name, _, _ in search(documents, "town lantern")) == "2"
    assert [name for name, _, _ in search(documents, "running")] == ["1"]
    equal = [name for name, _, _ in search(documents, "hall")]
    assert equal == ["3", "4"]


@pytest.mark.parametrize(
    "query", ['"', "AND OR NOT", "a* NEAR(b, 2)", "title:x -y", "", "('", "\u00e9\u00e8 \U0001f600", "x" * 5000]
)
def test_no_query_is_taken_for_syntax(query: str):
    assert isinstance(search(DOCUMENTS, query), list)


def test_training_and_heldout_corpora_have_no_document_in_common():
    texts: dict[str, set[str]] = {"train": set(), "heldout": set()}
    for split, draft in search_suite(SearchFamily(train=40, heldout=20)).drafts():
        texts[split] |= {json.loads(line)["text"] for line in draft.shared["corpus.jsonl"].splitlines()}
    assert len(texts["train"]) > 500 and len(texts["heldout"]) > 100
    assert not texts["train"] & texts["heldout"]


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_plain_worlds_are_asked_about_in_as_many_steps(steps: int):
    world = build_plain_world("a")
    assert corpus(build_plain_world("a")) == corpus(world) != corpus(build_plain_world("b")) and len(world.documents) == 12
    texts = {title: text for _, title, text in world.documents}
    for seed in range(40):
        asked = ask(random.Random(seed), world, steps)
        assert len(set(asked.path)) == steps and f"of {asked.path[0]}?" in asked.words
        assert f"code {asked.answer}" in texts[asked.path[-1]]
        assert not any(asked.answer in texts[name] for name in asked.path[:-1])


async def test_a_plain_suite_is_sound(tmp_path, make_sandbox):
    drafts = list(search_suite(SearchFamily(train=12, heldout=6, steps=(1, 2), worlds=12, plain=True)).drafts())
    assert len({draft.key for _, draft in drafts}) == 18
    for _, draft in drafts[:1]:
        task = load_task(write_draft(tmp_path, draft, Limits()))
        assert (await check_task(task, make_sandbox, times=1)).problems == ()


async def test_the_programs_work_in_a_sandbox(tmp_path, make_sandbox):
    ((_, made),) = search_suite(SearchFamily(train=0, heldout=1)).drafts()
    task = load_task(write_draft(tmp_path, made, Limits()))
    first = json.loads(made.shared["corpus.jsonl"].splitlines()[0])
    outputs = []

    async def act(task, step, sandbox):
        for command in (f"search {first['title']}", f"read_doc {first['id']}", "read_doc nowhere", "search", "search zzzz"):
            done = await sandbox.exec(["/bin/sh", "-c", command], timeout=30.0)
            outputs.append((done.exit_code, done.output))

    assert (await run_trial(task, make_sandbox, act, name="t", timeout=20.0)).reward == 0.0
    assert outputs[0][0] == 0 and f"{first['id']}  {first['title']}: " in outputs[0][1]
    assert outputs[1] == (0, f"{first['title']}\n{first['text']}\n")
    assert outputs[2] == (1, "there is no document 'nowhere'\n")
    assert outputs[3] == outputs[4] == (0, "nothing found\n")
