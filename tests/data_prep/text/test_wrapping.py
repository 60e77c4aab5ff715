"""Text of many kinds and scripts, cut at a margin by textwrap or not."""

import gzip
import json
import random
import textwrap
import unicodedata
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.text.corpus import Corpus
from data_prep.text.wrapping import unwrapped

DATA = Path(__file__).parents[4] / "shared" / "data"
# Words of a script, most of them short, with what stands between them and behind a sentence.
SCRIPTS = {
    "English": ("the heart rate of a patient was measured before and after treatment in Berlin", " ", "."),
    "Hebrew": ("הלב של חולה נמדד לפני ואחרי טיפול בבית חולים גדול עם רופא", " ", "."),
    "Arabic": ("قيس معدل ضربات قلب المريض قبل العلاج وبعده في مستشفى كبير مع طبيب", " ", "؟"),
    "Hindi": ("रोगी की हृदय गति को उपचार से पहले और बाद में मापा गया है", " ", "।"),
    "Korean": ("환자의 심박수는 치료 전과 후에 큰 병원에서 의사와 함께 측정되었다", " ", "."),
    "Thai": ("ผู้ป่วย ได้รับ การรักษา ด้วยยา และ ติดตาม ผล ใน โรงพยาบาล", " ", ""),
    "Chinese": ("患 者 的 心 率 在 治 疗 前 后 医 院 里 测 量 ， 并 且 医 生 说 好", "", "。"),
    "Japanese": ("患者 の 心拍 数 を 治療 の 前 と 後 に 病院 で 測定 した ｶﾞﾝ 、", "", "。"),
}


def paragraphs(script: str, count: int = 60) -> list[list[str]]:
    """Paragraphs of five sentences of a dozen words and more, drawn at random."""
    words, space, end = SCRIPTS[script]
    draw = random.Random(script)
    words = words.split()

    def sentence() -> str:
        drawn = space.join(draw.choices(words, k=draw.randint(8, 24)))
        return drawn[0].upper() + drawn[1:] + end

    return [[sentence() for _ in range(5)] for _ in range(count)]


def rule_of(folder: Path, lines: list[str]) -> str:
    (folder / "a.txt").write_text("\n".join(lines))
    return Corpus([str(folder / "a.txt")], document="file").rules[0].line


@pytest.mark.parametrize("margin", [36, 60, 76, 120])
@pytest.mark.parametrize("script", SCRIPTS)
def test_paragraphs_that_were_cut_at_a_margin_are_known_in_every_script(tmp_path, script, margin):
    space, wide = SCRIPTS[script][1], not SCRIPTS[script][1]
    texts = [space.join(sentences) for sentences in paragraphs(script)]
    wrapped = [textwrap.wrap(text, margin // 2 if wide else margin) for text in texts]
    assert rule_of(tmp_path, [line for lines in wrapped for line in [*lines, ""]]) == "wrapped"
    rows = [json.dumps({"text": "\n".join(lines)}) for lines in wrapped]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    assert Corpus([str(tmp_path / "rows.jsonl")]).rules[0].line == "wrapped"


@pytest.mark.parametrize("script", SCRIPTS)
def test_sentences_and_paragraphs_of_every_script_are_not_taken_for_wrapped(tmp_path, script):
    parts = paragraphs(script)
    assert rule_of(tmp_path, [line for sentences in parts for line in [*sentences, ""]]) != "wrapped"
    assert rule_of(tmp_path, [SCRIPTS[script][1].join(sentences) for sentences in parts]) != "wrapped"


def printed(text: str, margin: float) -> list[str]:
    """Lines of a page whose letters are not equally wide."""
    widths = dict.fromkeys("ijlft.,I", 0.4) | dict.fromkeys("mwMW", 1.6)
    lines, room = [""], margin
    for word in text.split():
        width = sum(widths.get(letter, 1) for letter in f"{word} ")
        if width > room:
            lines.append("")
            room = margin
        lines[-1] = f"{lines[-1]} {word}".strip()
        room -= width
    return lines


@pytest.mark.parametrize("margin", [40, 60, 90])
@pytest.mark.parametrize("script", ["English", "Hebrew"])
def test_lines_of_a_printed_page_are_known(tmp_path, script, margin):
    pages = [printed(" ".join(sentences), margin) for sentences in paragraphs(script)]
    assert rule_of(tmp_path, [line for lines in pages for line in [*lines, ""]]) == "wrapped"


def records(kind: str, count: int = 400) -> list[str]:
    """Lines that each stand for themselves, near a margin or cut at it."""
    draw = random.Random(kind)
    words = [*SCRIPTS["English"][0].lower().split(), "e.g.", "Dr. Low"]
    text = [" ".join(draw.choices(words, k=30)) for _ in range(count)]
    subtitle = ["{0}\n00:00:{1},000 --> 00:00:{1},900\n{2}\n".format(n, 10 + n % 50, text[n]) for n in range(count)]
    return {
        "fixed width": [f"{line[:24]:<24}  {line[30:54]:<24}  12.03.19{n % 90 + 10}" for n, line in enumerate(text)],
        "cut within words": [line[:72] for line in text],
        "log": [f"2024-01-{10 + n % 20} 12:00:00 {textwrap.shorten(line, 60)}" for n, line in enumerate(text)],
        "near the width": [textwrap.shorten(line, 78, placeholder="").capitalize() + "." for line in text],
        "verse": [line[: draw.randint(30, 50)].rsplit(" ", 1)[0].capitalize() + draw.choice(",;. ") for line in text],
        "verse in lower case": [line[: draw.randint(28, 46)].rsplit(" ", 1)[0] + draw.choice(",;. ") for line in text],
        "Hebrew verse": [
            " ".join(draw.choices(SCRIPTS["Hebrew"][0].split(), k=draw.randint(6, 10))) + draw.choice(",. ")
            for _ in text
        ],
        "subtitles": [
            line for number, part in enumerate(subtitle) for line in
            [*part.split("\n")[:2], *textwrap.wrap(f"{text[number]}."[: 20 + 7 * (number % 8)], 40), ""]
        ],
        "headlines": [textwrap.shorten(line, draw.randint(30, 70), placeholder="") for line in text],
    }[kind]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    ["fixed width", "cut within words", "log", "near the width", "verse", "verse in lower case", "Hebrew verse",
     "subtitles", "headlines"],
)  # fmt: skip
def test_lines_that_stand_for_themselves_are_not_taken_for_wrapped(tmp_path, kind):
    assert rule_of(tmp_path, records(kind)) != "wrapped"


@pytest.mark.skipif(not DATA.is_dir(), reason="the texts are not on this machine")
@pytest.mark.parametrize("name", ["english-novels-a", "pmc-rct-text"])
@pytest.mark.parametrize("margin", [40, 72, 100])
def test_novels_and_articles_wrapped(tmp_path, name, margin):
    with gzip.open(DATA / name / "validation.txt.gz", "rt", encoding="utf-8") as file:
        lines = file.read(300_000).split("\n")
    wrapped = [textwrap.wrap(line, margin) for line in lines]
    assert rule_of(tmp_path, lines) != "wrapped"
    assert rule_of(tmp_path, [line for part in wrapped for line in [*part, ""]]) == "wrapped"
    # Nothing but the margin shows where a paragraph begins.
    assert rule_of(tmp_path, [line for part in wrapped for line in part]) == "wrapped"


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("The treat-\nment and the treatment.", "The treatment and the treatment."),
        ("A well-\nknown, well-known drug.", "A well-known, well-known drug."),
        ("A well-\nknown drug; wellknown once, well-known twice: well-known.",
         "A well-known drug; wellknown once, well-known twice: well-known."),
        ("The treat-\nment.", "The treat-ment."),
        ("The treatment, the treat-\nment with medi-\ncine of a far-\nsighted and far man.",
         "The treatment, the treatment with medicine of a far-sighted and far man."),
        ("Treatment by Meier-\nSchmidt: treat-\nment.", "Treatment by Meier-Schmidt: treatment."),
        ("COVID-\n19 from 5-\n10 - or\nso -\nsaid", "COVID-19 from 5-10 - or so - said"),
        ("medi\u00ad\ncine and", "medicine and"),
        ("患者の\n心拍数を drug で\n測定した。\n終わり", "患者の心拍数を drug で測定した。終わり"),
        ("환자의\n심박수", "환자의 심박수"),
        ("TREAT-\nMENT and treatment", "TREAT-MENT and treatment".replace("-", "")),
    ],
)  # fmt: skip
def test_words_that_were_broken_at_the_end_of_a_line_are_joined(text, joined):
    assert unwrapped(text.split("\n")) == [joined]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab-\u2010\u00ad 中ÄＡ1\u0301"), max_size=12).map(str.strip), max_size=8))
def test_joining_loses_no_letter_and_keeps_paragraphs_apart(lines):
    paragraphs = unwrapped(lines)
    kept = str.maketrans("", "", " -\u2010\u00ad")
    assert "".join(paragraphs).translate(kept) == "".join(lines).translate(kept)
    assert len(paragraphs) == sum(is_text for is_text, _ in groupby(lines, bool))


@pytest.mark.skipif(not DATA.is_dir(), reason="the texts are not on this machine")
def test_an_article_whose_words_were_broken_is_the_same_again():
    """Long words are broken in the middle; 95 of 100 places are as they were, and no letter is lost."""
    with gzip.open(DATA / "pmc-rct-text" / "validation.txt.gz", "rt", encoding="utf-8") as file:
        articles = [" ".join(text.split()) for text in file.read(1_500_000).split("\n\n")[:-1]]
    broken = wrong = 0
    for article in articles:
        lines = []
        for line in textwrap.wrap(article, 80):
            word = line.rsplit(" ", 1)[-1]
            cut = len(word) // 2
            breaks = word.isalpha() and len(word) > 7
            lines += [f"{line[: len(line) - cut]}-", word[-cut:]] if breaks else [line]
            broken += breaks or line.endswith("-")
        [joined] = unwrapped(lines)
        assert joined.replace("-", "").replace(" ", "") == article.replace("-", "").replace(" ", "")
        wrong += (Counter(article.split(" ")) - Counter(joined.split(" "))).total()
    assert broken > 2000 and wrong < 0.05 * broken


def test_a_run_of_letters_takes_linear_time():
    """A hundred thousand letters; at quadratic cost, minutes."""
    lines = ["a line that ends with treat-", "ment and " + "ACGT" * 100_000, "goes on"]
    assert unwrapped(lines)[0].startswith("a line that ends with treat-ment and ACGT")


@pytest.mark.parametrize("whole", ["hospital", "மருத்துவமனை", "विद्यालय", "ആശുപത്രി", "cafe\u0301te\u0301ria"])
def test_a_word_that_was_broken_behind_an_accent_or_a_vowel_sign_is_whole_again(whole):
    letters = [place for place in range(2, len(whole) - 1) if unicodedata.category(whole[place])[0] == "L"]
    for place in letters:
        lines = [f"{whole} ab {whole[:place]}-", f"{whole[place:]} cd"]
        assert unwrapped(lines) == [f"{whole} ab {whole} cd"]
