"""Turns appended as ids read as the template would have written the whole conversation."""

import numpy as np
import pytest
import tiny

from draftbench.training.chat import ChatFormat


@pytest.fixture(scope="module")
def chat(reference, folder):
    return ChatFormat(folder)


def test_a_next_turn_reads_as_the_template_writes_it(chat):
    response = np.append(chat.encode("Yes."), tiny.STOP)
    ids = np.concatenate(
        [chat.opening("Is it?", system="Be brief."), response, chat.next_turn(response, "Why?")]
    )
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Why?"},
    ]
    whole = chat.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert chat.tokenizer.decode(ids) == whole


def test_a_response_that_was_cut_is_closed(chat):
    response = chat.encode("It is beca")
    assert chat.next_turn(response, "Why?")[0] == tiny.STOP


def test_a_user_opening_stops_where_the_message_begins(chat):
    text = chat.tokenizer.decode(chat.user_opening("Talk about rivers."))
    assert text == "<|start|>system\nTalk about rivers.<|end|>\n<|start|>user\n"
