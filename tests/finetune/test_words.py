"""Words and where they are read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.text.cells import words_apart
from finetune.words import encode_words, joined, words_of

texts = st.text(st.sampled_from("ab7.,- é\u0301中文😀\u200b\u00a0\tİ[]#"), max_size=30)


@given(texts)
@settings(max_examples=500)
def test_words_are_those_of_the_tokenizer(small_tokenizer, text):
    spans = words_of(text)
    words = [text[start:end] for start, end in spans]
    text = words_apart(text)
    one_by_one = [i for ids in small_tokenizer.encode(words) for i in ids] if words else []
    assert one_by_one == small_tokenizer.encode([text])[0]
    assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False))
    assert not any(word.isspace() or not word for word in words)
    # An ideograph is a word of its own.
    assert all(len(word) == 1 or not set(word) & set("中文") for word in words)


def test_several_marks_between_words_of_thai_keep_every_word_in_its_place():
    text = "ข\u200b\u200bข x"
    assert [text[start:end] for start, end in words_of(text)] == ["ข", "ข", "x"]


@given(st.lists(st.text("ab \t7", min_size=1).map(lambda word: "".join(word.split()) or "x"), min_size=1))
def test_joined_words_are_where_they_are_said_to_be(words):
    text, spans = joined(words)
    assert [text[start:end] for start, end in spans] == words and text.split() == words


@given(
    st.lists(st.lists(st.sampled_from(["heart", "rate", "7", "\u200b", "xyzzyx", "the patient", "😀"]), max_size=40)),
    st.integers(4, 30),
)
@settings(max_examples=300)
def test_every_word_is_read_once_at_its_first_token(small_tokenizer, sentences, length):
    count = sum(map(len, sentences))
    encoded = encode_words([joined(words) for words in sentences], np.arange(count), small_tokenizer, length)
    assert sorted(encoded.item.tolist()) == list(range(count)) and encoded.num_texts == len(sentences)
    every = [word for words in sentences for word in words]
    first = [(small_tokenizer.encode([word])[0] or [small_tokenizer.unk_id])[0] for word in every]
    rows = encoded.sequences
    assert (rows.lengths() <= length).all() and set(encoded.text.tolist()) == set(range(len(sentences)))
    owner = np.repeat(np.arange(len(sentences)), [len(words) for words in sentences])
    for sequence in range(len(rows)):
        span = slice(encoded.bounds[sequence], encoded.bounds[sequence + 1])
        for item, place in zip(encoded.item[span], encoded.place[span], strict=True):
            assert owner[item] == encoded.text[sequence]
            # 0 is [CLS].
            assert 1 <= place <= rows.a_length[sequence]
            assert encoded.ids[rows.a_start[sequence] + place - 1] == first[item]


def test_a_word_is_read_where_most_of_the_text_stands_around_it(small_tokenizer):
    words, length = ["heart"] * 100, 22
    encoded = encode_words([joined(words)], np.zeros(100), small_tokenizer, length)
    starts = encoded.sequences.a_start
    assert len(starts) == 7 and encoded.num_long == 1
    sequence = np.searchsorted(encoded.bounds, np.arange(100), side="right") - 1
    for item, chosen in zip(encoded.item, sequence, strict=True):
        room = [
            min(item - start if start else 1000, start + 19 - item if start + 20 < 100 else 1000) for start in starts
        ]
        possible = [r if start <= item < start + 20 else -1 for r, start in zip(room, starts, strict=True)]
        assert possible[chosen] == max(possible)


def test_a_word_of_a_million_letters_is_one_token(small_tokenizer):
    encoded = encode_words([joined(["heart", "x" * 1_000_000, "heart"])], np.zeros(3), small_tokenizer, 10)
    assert len(encoded.ids) == 3 and encoded.ids[1] == small_tokenizer.unk_id


@pytest.mark.parametrize("count", [0, 1, 70_000])
def test_a_text_of_any_number_of_words(small_tokenizer, count):
    encoded = encode_words([joined(["heart"] * count)], np.zeros(count), small_tokenizer, 16)
    assert len(encoded.item) == count and encoded.num_cut == 0
