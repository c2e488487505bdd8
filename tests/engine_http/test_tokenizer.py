import json

import pytest
import tokenizers
from tiny_folder import write_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from draftbench.engine.serving.tokenizer import Tokenizer
from draftbench.errors import ConfigError

CHAT = [{"role": "user", "content": "draft, verify 👍"}, {"role": "assistant", "content": "commit"}]


def test_chats_and_texts_become_the_tokens_that_transformers_gives(tmp_path):
    write_tokenizer(tmp_path)
    ours, reference = Tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    expected = reference.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert ours.chat_template.render(CHAT) == expected
    ids = reference.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert list(ours.encode(expected, is_chat=True)) == ids
    assert list(ours.encode("the lazy dog")) == reference("the lazy dog")["input_ids"]


def test_a_beginning_of_text_is_added_to_a_text_but_not_to_a_chat_that_spells_it(tmp_path):
    write_tokenizer(tmp_path)
    path = str(tmp_path / "tokenizer.json")
    with_beginning = tokenizers.Tokenizer.from_file(path)
    with_beginning.post_processor = TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", 2)])
    with_beginning.save(path)
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("fox")[0] == 2
    ids = tokenizer.encode(tokenizer.chat_template.render(CHAT), is_chat=True)
    assert (ids[0], ids.count(2)) == (2, 1)


def test_padding_and_truncation_of_the_file_are_switched_off(tmp_path):
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(content))
    assert Tokenizer(tmp_path).decode(Tokenizer(tmp_path).encode("the lazy dog")) == "the lazy dog"


@pytest.mark.parametrize(
    ("name", "content", "fragment"),
    [
        ("tokenizer.json", "{", "expected a tokenizer in"),
        ("tokenizer_config.json", "{", "expected a JSON object in"),
        ("chat_template.jinja", "{% for %}", "a chat template that Jinja reads"),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, content, fragment):
    write_tokenizer(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=fragment):
        Tokenizer(tmp_path)


def test_a_folder_without_tokenizer_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"expected a tokenizer in .*tokenizer\.json"):
        Tokenizer(tmp_path)
