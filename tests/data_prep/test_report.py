"""Warnings of the report: said where they should be, and not where not."""

import numpy as np
import pytest

from data_prep.examples.masking import MASKINGS
from data_prep.examples.pairs import pairs
from data_prep.report import PartNumbers, decoded_examples, text_numbers, warnings, warnings_of_size
from data_prep.text_checks import TextChecks
from data_prep.vocabulary.word_counts import log_unigram

SOUND = {
    "corpus": {
        "rows": 0,
        "bad_rows": 0,
        "documents": 100,
        "duplicates": 0,
        "documents_without_group": 100,
        "checks": TextChecks().numbers(),
        "settings": {"group_column": None},
    },
    "train": {"tokens": 5_000_000, "sentences": 200_000, "documents": 90},
    "text": {
        "vocab_size": 8192,
        "lowercase": True,
        "rare_entries": 900,
        "unk_rate": 0.0005,
        "held_out_unk_rate": 0.001,
    },
    "pairs": {
        "next": 500,
        "random": 500,
        "unlabelled": 10,
        "unlabelled_because": {"only_sentence": 4, "no_room": 3, "left_over": 2, "no_partner": 1, "odd_couple": 0},
        "examples": 1010,
        "sentences_cut": 100,
    },
    "labelled_held_out": 90,
    "copied": {"tokens": 5_000, "share": 0.05},
}

NO_ROOM = SOUND["pairs"]["unlabelled_because"] | {"no_room": 290}


def changed(part: str, **values) -> dict:
    return SOUND | {part: SOUND[part] | values}


def checked(**values) -> dict:
    return changed("corpus", checks=SOUND["corpus"]["checks"] | values)


def test_sound_text_is_left_alone():
    assert warnings(SOUND, False) == warnings_of_size(SOUND, False) == []


@pytest.mark.parametrize(("facts", "words"), [
    (changed("pairs", next=0), "No example carries a next-sentence label, so next sentences cannot be learned; most"),
    (changed("pairs", next=0, unlabelled_because=NO_ROOM), "Words are learned all the same; a larger"),
    (changed("pairs", unlabelled=300), "30% of the examples carry no next-sentence label; most frequent reason: the"),
    (changed("pairs", unlabelled=300, unlabelled_because=NO_ROOM), "no neighbour fits. Their words are learned all"),
    (changed("text", unk_rate=0.002), "0.20% of the tokens are [UNK]"),
    (changed("text", held_out_unk_rate=0.3), "30% of the held-out tokens are [UNK], far more than of the others"),
    (changed("corpus", duplicates=20), "20% of the documents were exact duplicates"),
    (changed("copied", share=0.3), "30% of the held-out tokens stand in runs of 16 and more"),
    (changed("pairs", sentences_cut=30_000), "15% of the sentences are longer"),
    (
        changed("corpus", settings={"group_column": "patient"}, documents_without_group=7),
        "7 documents have no patient (an empty cell, or a text file, which has no columns): each",
    ),
    (changed("corpus", rows=100, bad_rows=2, bad_rows_listed=["a.csv:3 has 1 field"]), "2 of 100 rows hold no text"),
    (checked(read_twice=1), "In 1 places"),
    (checked(unreadable_characters=7), "7 characters are U+FFFD"),
    (checked(latin_controls=7), "--encoding cp1252"),
    (checked(documents_with_tags=11), "11% of the documents hold HTML"),
    (checked(repeated_lines=3, share_of_repeated_lines=0.02), "3 lines stand in more than half"),
    (checked(share_without_spaces=0.5), "written without spaces"),
])  # fmt: skip
def test_each_trouble_is_said_alone(facts, words):
    (sentence,) = warnings(facts, False)
    assert words in sentence


def test_where_next_sentences_are_learned_but_not_evaluated_it_is_said():
    (sentence,) = warnings_of_size(SOUND | {"labelled_held_out": 0}, False)
    assert "next sentences are learned, but never evaluated" in sentence
    assert warnings_of_size(changed("pairs", next=0) | {"labelled_held_out": 0}, False) == []


def test_long_words_of_copies_explain_no_unknown_words():
    """A file that was given twice has each of them twice, and what is learned from has them once."""
    checks = SOUND["corpus"]["checks"] | {"long_words": 50_000, "documents": 180}
    twice = {"checks": checks, "documents": 180, "duplicates": 90}
    for rate, are_said in ((0.0055, False), (0.0065, True)):
        facts = changed("corpus", **twice) | {"text": SOUND["text"] | {"unk_rate": rate}}
        assert any("[UNK]" in sentence for sentence in warnings(facts, False)) is are_said


def test_a_vocabulary_that_was_given_is_extended_not_enlarged():
    (sentence,) = warnings(changed("text", unk_rate=0.002), True)
    assert "--extend-vocab" in sentence and "--vocab-size" not in sentence
    assert warnings_of_size(changed("train", tokens=999_999), True) == []


def test_little_trouble_is_not_said():
    assert warnings(changed("corpus", rows=100, bad_rows=1, bad_rows_listed=["a.csv:3 has 1 field"]), False) == []
    assert warnings(checked(documents_with_tags=9), False) == []
    assert warnings(checked(repeated_lines=3, share_of_repeated_lines=0.005), False) == []


def test_a_vocabulary_too_large_and_a_text_too_small_are_said():
    (rare,) = warnings_of_size(changed("text", rare_entries=2000), False)
    assert "2,000 of 8,192 vocabulary entries" in rare and "--vocab-size 6144" in rare
    (tiny,) = warnings_of_size(changed("text", vocab_size=64, rare_entries=55), False)
    assert "55 of 64 vocabulary entries" in tiny and "--vocab-size" not in tiny and "give more text" in tiny
    assert warnings_of_size(changed("text", rare_entries=2000), True) == []
    (little,) = warnings_of_size(changed("train", tokens=999_999), False)
    assert "Only 999,999 tokens" in little and "--init-from" in little


def test_lines_are_compared_between_documents_and_counted_with_their_length():
    checks = TextChecks()
    for number in range(20):
        lines = ["Page 1 of 1", f"its own line {number}", *(["in half of them"] if number % 2 else [])]
        checks.add(lines, "\n".join(lines).encode())
    assert checks.repeated_lines() == [("Page 1 of 1", 20)]
    size = sum(len(f"its own line {n}") for n in range(20)) + 20 * len("Page 1 of 1") + 10 * len("in half of them")
    assert checks.numbers()["share_of_repeated_lines"] == pytest.approx(20 * len("Page 1 of 1") / size)


def test_a_few_documents_share_lines_by_chance():
    checks = TextChecks()
    for _ in range(9):
        checks.add(["the same line"], b"the same line")
    assert checks.repeated_lines() == []


@pytest.mark.parametrize("masking", MASKINGS)
def test_examples_are_shown_with_masks_of_the_kind_that_was_asked_for(masking, shard_of, small_tokenizer):
    ids = np.random.default_rng(1).choice(np.flatnonzero(small_tokenizer.is_ordinary), 400).astype(np.uint16)
    shard = shard_of([[20] * 10] * 2, ids)
    rows = pairs(shard, 96, 1, 0, small_tokenizer.starts_word)
    shown = decoded_examples(shard, rows, small_tokenizer, masking, 1, 3)
    for example in shown:
        tokens, targets = example["input"].split(), len(example["answers"])
        wanted = max(1, round(0.15 * len(tokens)))
        assert targets == wanted if masking in ("token", "span") else 1 <= targets <= wanted
        assert tokens.count("[MASK]") <= targets


def test_the_fill_is_that_of_the_sequence_length(shard_of, small_tokenizer):
    shard = shard_of([[13, 13], [13, 13]])
    found, numbers = pairs(shard, 32, 1, 0, small_tokenizer.starts_word), PartNumbers(100, 32)
    numbers.add(shard, found)
    assert numbers.of_pairs()["fill"] == pytest.approx(found.lengths().mean() / 32)


def test_the_unigram_entropy_is_what_the_frequencies_of_training_cost_on_the_held_out_text(shard_of, small_tokenizer):
    """The unigram entropy is what knowing the frequencies of training costs on the held-out text; letters that hardly
    occur are no entries too many."""
    parts = []
    for words in (("the", "of", "of"), ("heart", "the", "the")):
        ids = np.tile([small_tokenizer.vocabulary.index(word) for word in words], 8).astype(np.uint16)
        shard, numbers = shard_of([[12], [12]], ids), PartNumbers(small_tokenizer.vocab_size, 32)
        numbers.add(shard, pairs(shard, 32, 1, 0, small_tokenizer.starts_word))
        parts.append(numbers)
    found = text_numbers(*parts, 24, small_tokenizer)
    log = log_unigram(parts[0].counts)
    assert found["unigram_entropy"] == pytest.approx(-log @ parts[1].counts / 24)
    long = [entry for entry in small_tokenizer.vocabulary[7:] if len(entry.removeprefix("##")) > 1]
    assert found["rare_entries"] == len(long) - 2


def test_tokens_are_counted_by_the_word(shard_of, small_tokenizer):
    shard, numbers = shard_of([[12], [12]]), PartNumbers(small_tokenizer.vocab_size, 32)
    numbers.add(shard, pairs(shard, 32, 1, 0, small_tokenizer.starts_word))
    assert text_numbers(numbers, numbers, 16, small_tokenizer)["tokens_per_word"] == 1.5


def test_a_line_that_one_document_repeats_stands_in_one_document():
    """A line that stands in one document again and again is in one document."""
    checks = TextChecks()
    for number in range(12):
        lines = [f"its own line {number}", *["ditto"] * (12 * (number == 0))]
        checks.add(lines, "\n".join(lines).encode())
    assert checks.repeated_lines() == []
