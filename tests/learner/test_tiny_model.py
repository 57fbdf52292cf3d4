"""The tiny model's directory: tokenizer, cache, reproducibility."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from whippletree.errors import ConfigurationError
from whippletree.learner.tiny import SPECIAL_TOKENS, TinyConfig, build_tiny
from whippletree.learner.warmup import Examples, WarmupConfig, WarmupStats
from whippletree.rendering.renderer import load_renderer
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.trail import NAMES, TrailStream, task_texts

CONFIG = TinyConfig(hidden_size=32, intermediate_size=64, warmup=WarmupConfig(steps=2, batch=4))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("cache"), CONFIG, seed=1)


def test_a_second_call_uses_the_cache_and_leaves_nothing_beside_it(directory):
    before = (directory / "model.safetensors").stat().st_mtime_ns
    assert build_tiny(directory.parent, CONFIG, seed=1) == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]


def test_the_same_seed_gives_the_same_files_and_another_one_does_not(directory, tmp_path):
    again = build_tiny(tmp_path, CONFIG, seed=1)
    assert again.name == directory.name
    for name in ("tokenizer.json", "config.json", "model.safetensors", "chat_template.jinja"):
        assert (again / name).read_bytes() == (directory / name).read_bytes(), name
    other = build_tiny(tmp_path, CONFIG, seed=2)
    assert other != again
    assert (other / "tokenizer.json").read_bytes() == (again / "tokenizer.json").read_bytes()
    assert (other / "model.safetensors").read_bytes() != (again / "model.safetensors").read_bytes()
    assert build_tiny(tmp_path, msgspec.structs.replace(CONFIG, context_length=256), seed=1) != again


def test_the_recipe_is_written_beside_the_weights(directory):
    recipe = json.loads((directory / "recipe.json").read_text())
    assert msgspec.convert(recipe["config"], TinyConfig) == CONFIG
    assert recipe["seed"] == 1
    assert msgspec.convert(recipe["warmup"], WarmupStats).sequences == 8


def test_it_loads_as_an_ordinary_model_of_at_most_three_million_parameters(directory):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert model.config.model_type == "qwen3"
    assert model.num_parameters() < 3_000_000
    assert len(tokenizer) == model.config.vocab_size
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_the_end_of_turn_stops_generation(directory):
    renderer = load_renderer(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert renderer.stop_token_ids == [tokenizer.token_to_id("<|im_end|>")]
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == renderer.stop_token_ids[0]


def test_further_words_are_single_tokens_and_among_the_lists_to_repeat(directory, tmp_path):
    config = msgspec.structs.replace(CONFIG, words=("plume", "plumes", "a.b"))
    made = build_tiny(tmp_path, config, seed=1)
    assert made.name != directory.name
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    for word in (*config.words, "amber"):
        assert len(tokenizer.encode(word, add_special_tokens=False).ids) == 1
        pieces = tokenizer.encode(f"mv {word} x{word}y", add_special_tokens=False).tokens
        assert pieces.count(word) == 2, pieces
    assert len(tokenizer.encode("axb", add_special_tokens=False).ids) > 1  # a word is no pattern
    copying = msgspec.structs.replace(config.warmup, copy_share=1.0)
    examples = Examples(made, config.family, config.transcript_formats, copying, 1, words=config.words)
    lists = [tokenizer.decode(examples.draw().ids).split() for _ in range(100)]
    assert {"plume", "a.b", "amber"} <= {entry for entries in lists for entry in entries}
    with pytest.raises(ConfigurationError, match="empty word"):
        build_tiny(tmp_path, msgspec.structs.replace(CONFIG, words=("",)), seed=1)


def test_names_and_codes_are_single_tokens_wherever_they_stand(directory):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    family = CONFIG.family
    units = [*NAMES[: family.names], *(str(code) for code in range(10, 10 + family.codes))]
    stream = TrailStream(family)
    frames = ["{}", "cat {}\n", '{{"next": "{}"}}', "x{}y", "start at {} and submit the code"]
    frames += [text.replace("{", "{{").replace("}", "}}") + "{}" for text in task_texts(stream.train(5), family).values()]
    for unit in units:
        single = tokenizer.encode(unit, add_special_tokens=False).ids
        assert len(single) == 1
        for frame in frames:
            assert single[0] in tokenizer.encode(frame.format(unit), add_special_tokens=False).ids


def test_special_tokens_have_the_first_ids(directory):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))


def test_any_text_comes_back_exactly(directory):
    codec = load_renderer(directory).codec
    rng = random.Random(0)
    alphabet = "abcz 019{}\"'<|>\n\t_é日🙂"
    for _ in range(300):
        text = "".join(rng.choice([*alphabet, "amber", "birch", "17", *SPECIAL_TOKENS]) for _ in range(rng.randrange(30)))
        assert codec.decode(codec.encode(text)) == text


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (TinyConfig(heads=3), "heads"),
        (TinyConfig(vocabulary=300), "vocabulary"),
        (TinyConfig(family=TrailFamily(names=2)), "names"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_is_made(tmp_path, config, says):
    with pytest.raises(ConfigurationError, match=says):
        build_tiny(tmp_path / "cache", config, seed=1)
    assert not (tmp_path / "cache").exists()


def test_a_build_that_was_cut_off_is_made_anew(tmp_path, directory):
    leftover = tmp_path / f".{directory.name}.1"
    leftover.mkdir()
    (tmp_path / directory.name).mkdir()  # an empty directory in the way, as a crash between two file systems might leave
    built = build_tiny(tmp_path, CONFIG, seed=1)
    assert (built / "model.safetensors").is_file()


def test_importing_it_needs_no_torch():
    import subprocess
    import sys

    code = "import sys, whippletree.learner.tiny; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
