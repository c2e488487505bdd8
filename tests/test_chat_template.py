import json

import pytest

from draftbench.chat_template import ChatTemplate
from draftbench.errors import ConfigError

CHAT = [{"role": "user", "content": "<é>"}]


def _write(folder, template=None, **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return ChatTemplate(folder)


def test_a_template_file_goes_before_the_one_in_the_configuration(tmp_path):
    template = _write(tmp_path, "file", chat_template="configuration")
    assert template.render(CHAT) == "file"


def test_of_several_templates_the_default_one_is_taken(tmp_path):
    several = [{"name": "tools", "template": "tools"}, {"name": "default", "template": "default"}]
    assert _write(tmp_path, chat_template=several).render(CHAT) == "default"


def test_special_tokens_are_known_by_name_in_either_form(tmp_path):
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": None}
    template = _write(tmp_path, "{{ bos_token }}{{ eos_token }}{{ unk_token }}", **tokens)
    assert template.render(CHAT) == "<s></s>"


def test_json_is_written_without_escapes_for_html(tmp_path):
    assert _write(tmp_path, "{{ messages[0].content | tojson }}").render(CHAT) == '"<é>"'


def test_loops_may_be_left(tmp_path):
    assert _write(tmp_path, "{% for n in [1, 2] %}{{ n }}{% break %}{% endfor %}").render(CHAT) == "1"


def test_further_variables_reach_the_template_but_replace_no_message(tmp_path):
    template = _write(tmp_path, "{{ mode }} {{ messages | length }}")
    assert template.render(CHAT, {"mode": "fast", "messages": []}) == "fast 1"


@pytest.mark.parametrize(
    ("source", "fragment"),
    [
        ("{{ raise_exception('no system role') }}", "refuses the conversation: no system role"),
        ("{{ messages + 1 }}", "refuses the conversation"),
        ("{{ messages.append(1) }}", "refuses the conversation"),
        ("{{ ''.__class__.__mro__ }}", "refuses the conversation"),
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_told(tmp_path, source, fragment):
    with pytest.raises(ConfigError, match=fragment):
        _write(tmp_path, source).render(CHAT)


def test_a_conversation_without_any_template_is_told(tmp_path):
    with pytest.raises(ConfigError, match="expected a chat template in"):
        ChatTemplate(tmp_path).render(CHAT)


def test_a_configuration_that_is_no_object_is_named(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object in"):
        ChatTemplate(tmp_path)
