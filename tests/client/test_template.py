"""Chat templates of staged models, rendered without the model's own library."""

import json

import pytest

from draftbench.client.template import ChatTemplate
from draftbench.errors import ConfigError

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
BOS = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def make(tmp_path):
    def template(source=None, file=None, tokenizer=None, **config):
        if source is not None:
            config["chat_template"] = source
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        if file is not None:
            (tmp_path / "chat_template.jinja").write_text(file)
        if tokenizer is not None:
            (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
        return ChatTemplate(tmp_path)

    return template


def test_a_conversation_is_rendered(make):
    text = make(CHATML).render([{"role": "system", "content": "S"}, *MESSAGES])
    assert (
        text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_file_comes_before_the_configuration(make):
    assert make("old", file="new").render(MESSAGES) == "new"


def test_the_default_of_several_named_templates_is_taken(make):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert make(named).render(MESSAGES) == "plain"


def test_a_folder_without_template_is_refused(make):
    with pytest.raises(ConfigError, match="instruction-tuned"):
        make().render(MESSAGES)


def test_a_folder_that_is_not_staged_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected a chat template"):
        ChatTemplate(tmp_path / "absent").render(MESSAGES)


def test_a_template_that_does_not_parse_is_refused(make):
    with pytest.raises(ConfigError, match="that Jinja reads"):
        make("{% for %}")


def test_a_template_that_refuses_the_conversation_says_why(make):
    template = make("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ConfigError, match="roles must alternate"):
        template.render(MESSAGES)


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_cannot_leave_its_sandbox(make, source):
    with pytest.raises(ConfigError, match="refuses"):
        make(source).render(MESSAGES)


POST_PROCESSOR = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}]}


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, "<s>Hello"),
        ({"add_bos_token": False}, "<s>Hello"),
        ({"add_bos_token": True}, "Hello"),
        ({"tokenizer": {"post_processor": POST_PROCESSOR}}, "Hello"),
        ({"tokenizer": {"post_processor": {"type": "Sequence", "processors": [POST_PROCESSOR]}}}, "Hello"),
        ({"tokenizer": {"post_processor": {"type": "ByteLevel"}}}, "<s>Hello"),
        ({"tokenizer": {"post_processor": None}}, "<s>Hello"),
    ],
)
def test_the_beginning_of_text_token_is_never_doubled(make, facts, text):
    assert make(BOS, **{"bos_token": "<s>", **facts}).render(MESSAGES) == text


def test_special_tokens_may_be_objects(make):
    assert make("{{ eos_token }}", eos_token={"content": "</s>"}).render(MESSAGES) == "</s>"


def test_blocks_are_trimmed_as_templates_expect(make):
    source = "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n"
    assert make(source).render(MESSAGES) == "Hello\n"


def test_json_in_a_template_keeps_its_letters(make):
    assert make("{{ messages[0] | tojson }}").render([{"role": "user", "content": "<é>"}]).endswith('"<é>"}')
