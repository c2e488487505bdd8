"""Corpora on disk, and rows packed from them."""

import numpy as np

from draftbench.training.corpus import Conversation, load_corpus, pack_rows, save_corpus


def conversations(*lengths):
    rng = np.random.default_rng(0)
    return [
        Conversation(rng.integers(0, 49152, n), np.arange(n) >= n // 3, is_greedy=n % 2 == 0) for n in lengths
    ]


def test_a_corpus_comes_back_as_it_was_saved(tmp_path):
    texts = conversations(5, 12, 7)
    save_corpus(tmp_path / "a.npz", texts)
    loaded = load_corpus([tmp_path / "a.npz"])
    for one, other in zip(texts, loaded, strict=True):
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.is_response, other.is_response)
        assert one.is_greedy == other.is_greedy


def test_the_same_corpus_gives_the_same_bytes(tmp_path):
    for name in ("a.npz", "b.npz"):
        save_corpus(tmp_path / name, conversations(5, 12, 7))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_packing_keeps_every_token_and_fills_the_rows():
    texts = conversations(60, 50, 40, 30, 14, 4)
    rows = pack_rows(texts, 100)
    assert rows.ids.shape == (2, 100)
    assert (rows.document >= 0).sum() == 198
    assert rows.is_response.sum() == sum(text.is_response.sum() for text in texts)


def test_positions_start_anew_with_each_conversation():
    rows = pack_rows(conversations(6, 4), 10)
    assert rows.positions[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert rows.document[0].tolist() == [0] * 6 + [1] * 4


def test_a_text_longer_than_a_row_is_cut():
    assert (pack_rows(conversations(30), 20).document == 0).all()
