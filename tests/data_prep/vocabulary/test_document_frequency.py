"""Vocabulary entries that several documents, or groups, share: against a count by hand."""

from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.corpus import Document
from data_prep.vocabulary.make import shared_entries
from data_prep.vocabulary.wordpiece import SPECIAL_TOKENS

words = st.sampled_from(["heart", "hearts", "the", "rate", "rating", "stable", "z", "q9", "was"])
lines = st.lists(st.lists(words, min_size=1, max_size=5).map(" ".join), min_size=1, max_size=3)
documents = st.lists(st.tuples(lines, st.sampled_from([None, "a", "b", "c"])), min_size=1, max_size=8)


@given(documents, st.integers(1, 4))
def test_entries_are_kept_that_enough_owners_have(small_tokenizer, found, least):
    corpus = [Document(text, f"{number}", group) for number, (text, group) in enumerate(found)]
    owners: dict[str, set] = {}
    for number, document in enumerate(corpus):
        owner = number if document.group is None else document.group
        text = " ".join(document.lines)
        pieces = {small_tokenizer.vocabulary[i] for ids in small_tokenizer.encode(document.lines) for i in ids}
        letters = {form for letter in text for form in (letter, f"##{letter}")}
        for entry in {piece for piece in pieces if len(piece.removeprefix("##")) > 1} | letters:
            owners.setdefault(entry, set()).add(owner)
    expected = [
        entry for entry in small_tokenizer.vocabulary if entry in SPECIAL_TOKENS or len(owners.get(entry, ())) >= least
    ]
    assert shared_entries(small_tokenizer, lambda: corpus, least) == expected


def test_a_number_that_no_corpus_has_takes_no_memory(small_tokenizer):
    corpus = [Document(["the heart"], str(number), None) for number in range(3)]
    assert set(shared_entries(small_tokenizer, lambda: corpus, 10**12)) == {*SPECIAL_TOKENS}
