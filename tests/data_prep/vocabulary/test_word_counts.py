"""Words counted for a vocabulary, against the normaliser and pre-tokenizer of `tokenizers` on the whole text."""

import random
from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from data_prep.vocabulary import word_counts
from data_prep.vocabulary.training import train_vocabulary
from data_prep.vocabulary.word_counts import WordCounts
from data_prep.vocabulary.wordpiece import bert_normalizer

# What is dropped, what is a space, what is a word of its own, what changes with its neighbour.
AWKWARD = "\x00\t\n\v\f\r\x1c\x7f\x85\xa0\u200b\u2028\u3000\ufeff-.$_'…¿中カ가ÀéeE\u0301\u0338\u0345İß²١Σς\u037e"
TEXTS = st.lists(st.one_of(st.text(AWKWARD, max_size=12), st.text(max_size=12), st.just("a" * 100), st.just("é" * 101)))
OPTIONS = st.sampled_from([(True, False), (True, True), (False, False), (False, True)])


def cut(text: str, lowercase: bool, strip_accents: bool) -> Counter[str]:
    """All the words of a text."""
    cleaned = bert_normalizer(lowercase, strip_accents).normalize_str(text)
    return Counter(word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(cleaned))


@given(TEXTS, st.sampled_from(["", " ", "\n"]), OPTIONS)
@example(["각" * 40, "각" * 30], " ", (True, True))
@example(["ab\vcd e\ff gh\x1ci", "ab;cd\u037eef", "中中 カタ"], " ", (True, False))
def test_words_are_those_that_the_tokenizer_sees(parts, space, options):
    text = space.join(parts)
    counts = WordCounts(bert_normalizer(*options))
    for _ in range(70):
        counts.add(text)
    assert counts.result() == {w: 70 * n for w, n in cut(text, *options).items() if 1 < len(w) <= 100}


def test_different_texts_are_added_up(monkeypatch):
    monkeypatch.setattr(word_counts, "_TEXTS_AT_ONCE", 3)
    texts = [f"the heart rate {n % 3} of Patient-{n}" for n in range(20)]
    counts = WordCounts(bert_normalizer(True, False))
    for text in texts:
        counts.add(text)
    expected = cut("\n".join(texts), True, False)
    assert counts.result() == {word: n for word, n in expected.items() if len(word) > 1}


def test_ids_without_end_take_little_room_and_the_words_are_learned(monkeypatch):
    monkeypatch.setattr(word_counts, "MOST_CHARACTERS", 20_000)
    monkeypatch.setattr(word_counts, "_TEXTS_AT_ONCE", 1)
    rng = random.Random(1)
    lexicon = ["".join(rng.choices("abcdefghij", k=rng.randint(4, 9))) for _ in range(60)]
    lines = []
    for _ in range(1000):
        ids = ["".join(rng.choices("klmnopqrst0123456789", k=9)) for _ in range(40)]
        lines.append(" ".join([*rng.choices(lexicon, k=9), *ids]))
    assert set(train_vocabulary(lines)) >= set(lexicon)
    counts = WordCounts(bert_normalizer(True, False))
    for line in lines:
        counts.add(line)
    assert sum(map(len, counts.result())) <= 20_000
    expected = Counter(word for line in lines for word in line.split())
    assert all(counts.result()[word] == expected[word] for word in lexicon)
