"""Questions as windows: what is in them, where the answer is, and which characters tokens have."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.vocabulary.wordpiece import SPECIAL_TOKENS, WordPieceTokenizer
from finetune.batches import BatchMaker
from finetune.questions.contexts import encode_questions, tokens_of
from finetune.rows import Example

WORDS = ["heart", "rate", "7", "the", "patients", "xyzzy", "é", "e\u0301", "中", "😀", "."]
LETTERS = "ab7.,- é\u0301\u0302\u0338中국カ゛İ½😀\u200d\ufe0f\u200b\u00a0\x00\t[]#\u0e01"
words = st.lists(st.sampled_from(WORDS), max_size=60)


def example(question, context, *answers):
    return Example("x:1", question, context, tuple(answers))


def windows_of(encoded, tokenizer):
    """(ids, places, targets) of each window."""
    maker = BatchMaker(encoded, tokenizer, 1)
    for sequence in range(len(encoded.sequences)):
        batch = maker.packed(np.array([sequence]))
        yield batch.input_ids.tolist(), batch.places.tolist(), batch.labels.numpy()


@given(words, words.filter(any), st.integers(8, 24), st.data())
@settings(max_examples=150)
def test_windows_hold_the_question_and_all_of_the_context(small_tokenizer, question, context, length, data):
    question, context = " ".join(question) or "the", " ".join(context)
    start = data.draw(st.integers(0, len(context) - 1))
    answer = start, data.draw(st.integers(start + 1, len(context)))
    encoded = encode_questions([example(question, context, answer)], small_tokenizer, length)
    asked, ids = (small_tokenizer.encode([text])[0] for text in (question, context))
    cls, sep, capacity = small_tokenizer.cls_id, small_tokenizer.sep_id, length - 3
    found = list(windows_of(encoded, small_tokenizer))
    kept = min(len(asked), max(capacity // 2, capacity - len(ids)))
    assert encoded.num_cut == len(asked) - kept and encoded.num_tokens == len(asked) + len(ids)
    assert encoded.num_long == (len(asked) + len(ids) > capacity)
    begin = [cls, *asked[:kept], sep]
    spans = list(zip(encoded.sequences.b_start.tolist(), encoded.sequences.b_length.tolist(), strict=True))
    first = spans[0][0]
    for (of_window, places, _), (at, size) in zip(found, spans, strict=True):
        assert of_window == [*begin, *ids[at - first : at - first + size], sep] and len(of_window) <= length
        assert places == [0, *range(len(begin), len(begin) + size)]
    covered = {token for at, size in spans for token in range(at - first, at - first + size)}
    assert covered == set(range(len(ids)))
    # A quarter of what a window has room for is in the next one too.
    room = capacity - kept
    assert all(b - a <= max(1, room - int(0.25 * room)) for (a, _), (b, _) in pairwise(spans))
    characters = encoded.characters[first : first + len(ids)]
    wanted = tokens_of(answer, characters)
    num_wanted = wanted[1] - wanted[0] + 1
    is_held = any(at - first <= wanted[0] and wanted[1] < at - first + size for at, size in spans)
    assert encoded.num_long_answers == (num_wanted > 30)
    assert encoded.num_parted_answers == (num_wanted <= 0 or not is_held)
    assert encoded.targets.sum(0) == pytest.approx([1, 1], abs=1e-5)
    for (_, _, targets), (at, size) in zip(found, spans, strict=True):
        start, end = (int(column.argmax()) for column in targets.T)
        assert (targets > 0).sum(0).tolist() == [1, 1]
        is_inside = at - first <= wanted[0] <= wanted[1] < at - first + size
        shown = (wanted[0] - (at - first) + 1, wanted[1] - (at - first) + 1) if is_inside else (0, 0)
        assert (start, end) == shown


def test_answers_that_cannot_be_learned_or_given_are_said(small_tokenizer):
    context = " ".join(["heart"] * 40)
    answers = [(0, 5), (0, len(context) - 6), (6, 50)]
    encoded = encode_questions([example("the", context, answer) for answer in answers], small_tokenizer, 12)
    said = (" Answers of more than 30 tokens, the most that is given: 1. Answers that no window holds as a whole, "
            "learned as no answer: 2.")  # fmt: skip
    assert encoded.lost() == said
    assert not encode_questions([example("the", context, answers[0])], small_tokenizer, 12).lost()


@given(st.text(st.sampled_from(LETTERS), min_size=1, max_size=40), st.data())
@settings(max_examples=250)
def test_an_answer_comes_back_as_a_slice_that_has_all_of_it(text, data):
    for strips in (True, False):
        tokenizer = tokenizers(strips)
        encoded = encode_questions([example("a", text)], tokenizer, 2048)
        characters = encoded.characters[encoded.sequences.b_start[0] :][: encoded.sequences.b_length[0]]
        assert (
            encoded.ids[encoded.sequences.b_start[0] :][: len(characters)].tolist()
            == tokenizer.encode([spaced(text)])[0]
        )
        assert (characters[:, 0] < characters[:, 1]).all() and (np.diff(characters, axis=0) >= 0).all()
        if not len(characters):
            continue
        first, last = sorted(data.draw(st.integers(0, len(characters) - 1)) for _ in range(2))
        start, end = int(characters[first, 0]), int(characters[last, 1])
        for answer in ((start, end), (start, start + 1), (end - 1, end)):
            begin, last = tokens_of(answer, characters)
            # All of it, and no token beside it.
            assert characters[begin, 0] <= answer[0] < characters[begin, 1]
            assert characters[last, 0] < answer[1] <= characters[last, 1]


def spaced(text):
    """As words are parted where Thai is written with marks between them."""
    return text.replace("\u0e01\u200b", "\u0e01 ").replace("\u200b\u0e01", " \u0e01")


def tokenizers(strips):
    jamo = ["ᄀ", "##ᅮ", "##ᆨ"]
    pieces = [*SPECIAL_TOKENS, *"ab7.,-e中カ[]#é", *(f"##{letter}" for letter in "ab7e"), *jamo]
    return WordPieceTokenizer(pieces, lowercase=strips, strip_accents=strips)


AWKWARD = [
    ("in cafe\u0301 x", "cafe\u0301"),
    ("in café x", "café"),
    ("by 👩\u200d⚕\ufe0f x", "👩\u200d⚕\ufe0f"),
    ("in 東京 x", "京"),
    ("an xyzzyx x", "xyzzyx"),
    ("was 국 x", "국"),
    ("a ข\u200b\u200bข x", "ข"),
    ("İ x", "İ"),
    ("now e\u0301\u0302.", "e\u0301\u0302"),
]


@pytest.mark.parametrize(("context", "answer"), AWKWARD)
@pytest.mark.parametrize("strips", [True, False])
def test_borders_among_marks_and_signs_are_those_of_characters(context, answer, strips):
    start = context.index(answer)
    encoded = encode_questions([example("a", context, (start, start + len(answer)))], tokenizers(strips), 64)
    begin = int(encoded.sequences.b_start[0])
    first, last = (int(column.argmax()) - 1 for column in encoded.targets.T)
    characters = encoded.characters[begin:]
    assert context[characters[first, 0] : characters[last, 1]] == answer


def test_a_context_is_stored_once(small_tokenizer):
    context = "the heart rate was stable . " * 20
    one = encode_questions([example("the", context, (4, 9))], small_tokenizer, 32)
    many = [example(f"the {number}", context, (4, 9)) for number in range(50)]
    encoded = encode_questions(many, small_tokenizer, 32)
    assert len(encoded.ids) < len(one.ids) + 50 * 5 and encoded.num_texts == 50
    assert len(encoded.sequences) > 50 * 5


def test_what_answers_are_there_is_in_the_digest(small_tokenizer):
    digests = {
        encode_questions([example("the", "heart rate", *answers)], small_tokenizer, 32).digest()
        for answers in ([(0, 5)], [(0, 5), (6, 10)], [(6, 10)], [])
    }
    assert len(digests) == 4


def test_nothing_is_encoded_too(small_tokenizer):
    encoded = encode_questions([], small_tokenizer, 32)
    assert encoded.num_texts == len(encoded.sequences) == len(encoded.targets) == 0


def test_a_context_without_a_token_has_no_answer(small_tokenizer):
    encoded = encode_questions([example("the", "\u200b\x00", (0, 1))], small_tokenizer, 32)
    assert encoded.targets.tolist() == [[1, 1]] and encoded.sequences.b_length.tolist() == [0]


@pytest.mark.parametrize(
    "context", ["x" * 1_000_000, "中" * 60_000, "\u0301" * 200_000], ids=["word", "signs", "marks"]
)
def test_long_words_take_neither_minutes_nor_memory(small_tokenizer, context):
    encoded = encode_questions([example("the", context, (0, len(context)))], small_tokenizer, 48)
    assert len(encoded.ids) <= 1 + len(context) and encoded.targets.sum() == pytest.approx(2)
