import numpy as np
import pytest
from tiny_folder import SPECIAL_TOKENS

from draftbench.engine.serving.detokenize import Detokenizer, StopStrings

TEXT = "naïve 👩‍👩‍👧‍👦 draft, verify — commit 漢字 the lazy dog 🇩🇪" * 3


def _pieces(tokenizer, ids, sizes):
    detokenizer, pieces, start = Detokenizer(tokenizer.decode), [], 0
    while start < len(ids):
        size = next(sizes)
        pieces.append(detokenizer.push(ids[start : start + size]))
        start += size
    return [*pieces, detokenizer.flush()]


def _sizes(seed):
    chooser = np.random.default_rng(seed)
    while True:
        yield int(chooser.choice([1, 1, 2, 3, 5, 16, 40]))


@pytest.mark.parametrize("seed", range(10))
def test_the_pieces_of_a_text_join_to_it_and_never_break_a_character(tokenizer, seed):
    pieces = _pieces(tokenizer, tokenizer.encode(TEXT), _sizes(seed))
    assert "".join(pieces) == TEXT
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@pytest.mark.parametrize("seed", range(30))
def test_the_pieces_of_random_tokens_join_to_the_whole_decoding(tokenizer, seed):
    ids = np.random.default_rng(seed).integers(0, 320, size=400).tolist()
    assert "".join(_pieces(tokenizer, ids, _sizes(seed))) == tokenizer.decode(ids)


def test_special_tokens_behind_a_broken_character_do_not_lose_it(tokenizer):
    broken = tokenizer.encode("é")[:1]
    ids = [*tokenizer.encode("a"), *broken, *[0] * 40, *tokenizer.encode("é")[1:]]
    assert "".join(_pieces(tokenizer, ids, iter([1] * 100))) == "aé"


def test_special_tokens_are_written_only_when_asked(tokenizer):
    ids = [*tokenizer.encode("a"), 1]
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a" + SPECIAL_TOKENS[1]


def test_decoding_looks_at_few_old_tokens_however_long_the_output(tokenizer):
    lengths = []

    def decode(ids):
        lengths.append(len(ids))
        return tokenizer.decode(ids)

    detokenizer = Detokenizer(decode)
    for token_id in tokenizer.encode("the quick brown fox " * 200):
        detokenizer.push([token_id])
    assert max(lengths) <= 17


@pytest.mark.parametrize(
    ("stops", "pieces", "sent", "matched"),
    [
        (["END"], ["abE", "N", "Dxyz"], "ab", "END"),
        (["END"], ["abE", "Nx"], "abENx", None),
        (["END", "bEN"], ["abEND"], "a", "bEN"),
        (["aab"], ["aaa", "b"], "a", "aab"),
        (["END"], ["abEN"], "abEN", None),
        ([], ["ab", "c"], "abc", None),
    ],
)
def test_text_passes_up_to_the_first_stop_string(stops, pieces, sent, matched):
    filter_ = StopStrings(stops)
    passed = []
    for piece in pieces:
        passed.append(filter_.push(piece))
        if filter_.matched:
            break
    assert "".join(passed) + filter_.flush() == sent
    assert filter_.matched == matched


def test_nothing_of_a_stop_string_is_given_out_before_it_is_complete():
    stops = StopStrings(["<end>"])
    assert [stops.push(piece) for piece in ("a<", "en", "d", ">")] == ["a", "", "", ""]
