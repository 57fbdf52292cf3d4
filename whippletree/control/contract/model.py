"""A tokenizer and a chat template for checks: enough of a model for the gateway to render and parse, without weights.

Invariants (tests/control/test_contract_model.py): any text is reproduced exactly; a turn with thinking, text and several tool
calls is parsed as it was written.
"""

from __future__ import annotations

import json
from pathlib import Path

from whippletree import protocols
from whippletree.protocols import Renderer
from whippletree.rendering import RenderingConfig, load_renderer

VOCABULARY = 2000  # ids; larger than every id of the tokenizer
_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content.strip('\\n') }}
</think>

{{ message.content.lstrip('\\n') }}{% else %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{%- if not loop.first or message.content %}
{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments if call.function.arguments is string else
(call.function.arguments | tojson) }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make_renderer(directory: Path) -> Renderer:
    """Write the tokenizer and the template into an empty directory and load them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY // 2,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(protocols.__file__).read_text(encoding="utf-8")] * 2, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}), encoding="utf-8")
    (directory / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return load_renderer(directory, RenderingConfig(template=str(directory / "template.jinja")))
