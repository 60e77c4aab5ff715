import gzip
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import PrepError
from data_prep.text.sentences import LONGEST_PIECE, _plain_split, check_language, split

NOVELS = Path(__file__).parents[4] / "shared" / "data" / "english-novels-a" / "validation.txt.gz"

# Letters, marks and white space that sentence splitters trip over: no-break and ideographic spaces, initials,
# abbreviations, quotes that never close, several scripts.
AWKWARD = st.lists(
    st.sampled_from(
        [
            "A.",
            "b",
            "Dr.",
            "e.g.",
            "3.5",
            "\u00a0",
            "\u3000",
            "\u2028",
            "\x85",
            " ",
            " ",
            "\t",
            '"',
            "“",
            "”",
            "«",
        ]
        + [
            "你好",
            "。",
            "！",
            "가나다",
            "?",
            "!",
            "…",
            "(",
            ")",
            "नमस्ते",
            "।",
            "é",
            "👍🏽",
            "\u200b",
            "Он.",
            "\x1c",
        ]
    ),
    max_size=40,
).map("".join)


def letters(text: str) -> str:
    return "".join(text.split())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(AWKWARD | st.text(max_size=60), max_size=4),
    st.sampled_from(["en", "de", "zh", "hi", "hy", "ko"]),
)
def test_nothing_but_white_space_is_lost_and_no_piece_is_blank(lines, language):
    lines = [line.encode("utf-8", "replace").decode() for line in lines]
    sentences = split(lines, language, "paragraph")
    assert letters("".join(sentences)) == letters("".join(lines))
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@pytest.mark.parametrize("space", ["\u00a0", "\u2009", "\u3000", "\u2028", "\x85"])
def test_a_wide_space_before_a_full_stop_does_not_stop_the_program(space):
    assert split([f"This is plan A{space}. It works."], "en", "paragraph")[-1].endswith("It works.")


def test_rule_sentence_returns_the_lines():
    assert split(["One. Two.", "Three"], "en", "sentence") == ["One. Two.", "Three"]


def test_abbreviations_are_those_of_the_language():
    text = ["Er kam am 3. Mai. Sie nicht."]
    assert split(text, "de", "paragraph") == ["Er kam am 3. Mai.", "Sie nicht."]
    assert split(text, "DE-at", "paragraph") == split(text, "de", "paragraph")
    assert len(split(text, "en", "paragraph")) == 3


@pytest.mark.parametrize("sentence", ["It rained all day. ", "Он пришёл домой. ", "下了一整天的雨。"])
def test_an_unclosed_quote_does_not_swallow_a_page(sentence):
    page = "“" + sentence * 1000
    sentences = split([page], "en", "paragraph")
    assert max(map(len, sentences)) <= LONGEST_PIECE
    assert letters("".join(sentences)) == letters(page)


def test_the_plain_rule_does_not_cut_before_lower_case_or_inside_numbers():
    text = "It was 3.5 cm. long, e.g. so! He said: “Go on.” “Why?” 第一。第二！」第三"
    assert list(_plain_split(text)) == [
        "It was 3.5 cm. long, e.g. so!",
        "He said: “Go on.”",
        "“Why?”",
        "第一。",
        "第二！」",
        "第三",
    ]


def test_a_megabyte_of_chinese_on_one_line_takes_seconds_not_minutes():
    start = time.process_time()
    sentences = split(["下了一整天的雨。" * 40_000], "zh", "paragraph")
    assert len(sentences) == 40_000
    assert time.process_time() - start < 10


PIECES_OF_JAPANESE = [
    "本稿では", "々ゝヽ", "〇〇を", "ｶﾀｶﾅﾃﾞ", "３．１４", "第２．１節，", "Ａ．Ｂ．氏", "「行く。すぐに。」と",
    "『なぜ？』って", "｢ﾊｲ｡｣、", "（注）", "本iPhoneの", "平成2023年",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(PIECES_OF_JAPANESE), min_size=1, max_size=4), st.sampled_from("。！？｡．")),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["", " ", "\u3000"]),
)
def test_japanese_is_cut_behind_its_end_marks_and_nowhere_else(parts, space):
    sentences = ["".join(pieces) + "です" + mark for pieces, mark in parts]
    assert split([space.join(sentences)], "ja", "paragraph") == sentences


@pytest.mark.parametrize("sentence", ["１．はじめに．", "「行く。」と言う．", "ｿｳ｡", "値３．１４．", "。）", "３．１"])
def test_a_long_line_of_japanese_takes_seconds_not_minutes(sentence):
    start = time.process_time()
    page = sentence * (100_000 // len(sentence))
    sentences = split([page], "ja", "paragraph")
    assert "".join(sentences) == page
    assert len(sentences) == (page.count(sentence) if sentence not in ("。）", "３．１") else 1)
    assert time.process_time() - start < 5


def test_an_unknown_language_is_refused_with_the_nearest_codes():
    with pytest.raises(PrepError, match=r'"English" is not a language code; pass --language .* such as en'):
        check_language("English")
    with pytest.raises(PrepError, match="xx"):
        split(["One. Two."], "xx", "paragraph")
    assert [check_language(code) for code in ("en", "KO", "pt_BR", "zh-Hant")] == ["en", "ko", "pt", "zh"]


@pytest.mark.skipif(not NOVELS.is_file(), reason="the novels are not on this machine")
def test_novels_split_into_sentences_of_a_plausible_length_and_fast():
    lines = [line.strip() for line in gzip.open(NOVELS, "rt", encoding="utf-8") if line.strip()]
    start = time.process_time()
    sentences = split(lines, "en", "paragraph")
    assert time.process_time() - start < 2
    assert letters("".join(sentences)) == letters("".join(lines))
    words = sum(len(sentence.split()) for sentence in sentences) / len(sentences)
    assert 10 < words < 25 and max(map(len, sentences)) < 2000


def test_khmer_ends_a_sentence_with_a_mark_of_its_own():
    first, second = "ខ្ញុំទៅផ្សារ។", "គាត់នៅផ្ទះ។"
    assert split([f"{first} {second} {first}"], "km", "paragraph") == [first, second, first]
