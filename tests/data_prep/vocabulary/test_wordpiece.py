"""The vocabulary and its folder, against transformers, a brute-force WordPiece and counts."""

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from data_prep.errors import PrepError
from data_prep.vocabulary.training import (
    _alphabet,
    _Letter,
    _needed,
    automatic_size,
    count_characters,
    train_vocabulary,
)
from data_prep.vocabulary.wordpiece import SPECIAL_TOKENS, WordPieceTokenizer

ROOT = Path(__file__).parents[3]
AWKWARD = [
    "Schön, naïve café; ÉCOLE İstanbul ΣΑΣ ß Ǆ ﬁ",
    "한국어 영화는 정말 재미있다!! 각 ㅋㅋㅋ",
    "中文漢字と日本語のテキスト、ガギグ。",
    "x" * 101 + " " + "y" * 100 + " z",
    "emoji 😀👩‍👩‍👧 and ☃ unseen: ᚠᚢ",
    "tab\tnul\x00 bell\x07 del\x7f nbsp\u00a0 zero\u200bwidth soft\u00adhyphen bom\ufeff",
    "line\u2028separator next\x85line \x1c\x1d",
    "don't e-mail a@b.org $5 50% `code` ## ##ing [ ] ^_|~",
    "[UNK] [CLS] [unused1] [mask]",
    "e\u0301 combining a\u0308 u\u0323\u0308",
    "",
    "   ",
]


@cache
def sample_texts() -> list[str]:
    """Deterministic mixed text, about 300 kB: made-up words, some of them frequent, and awkward lines."""
    draw = np.random.default_rng(1)
    parts = "a re tion Ent ing über é st ki lo 가 나 다 中 文 ed un ly ö ç 7 -".split()
    lexicon = ["".join(draw.choice(parts, size=draw.integers(1, 5))) for _ in range(3000)]
    ranks = draw.zipf(1.3, size=60_000) % len(lexicon)
    lines = [" ".join(lexicon[i] for i in ranks[start : start + 20]) + "." for start in range(0, len(ranks), 20)]
    return lines + AWKWARD * 2


@pytest.fixture(scope="module", params=["uncased", "uncased-stripped", "cased", "cased-stripped"])
def tokenizer(request: pytest.FixtureRequest) -> WordPieceTokenizer:
    lowercase, strip_accents = request.param.startswith("uncased"), request.param.endswith("stripped")
    vocabulary = train_vocabulary(sample_texts(), 1024, lowercase=lowercase, strip_accents=strip_accents)
    return WordPieceTokenizer(vocabulary, lowercase, strip_accents)


@pytest.fixture(scope="module")
def plain() -> WordPieceTokenizer:
    return WordPieceTokenizer(train_vocabulary(sample_texts(), 1024), True, False)


# Training

TRAIN_SCRIPT = """
import hashlib, sys
from data_prep.vocabulary import word_counts
from data_prep.vocabulary.training import train_vocabulary
for most_characters in (1 << 22, 100_000):
    word_counts.MOST_CHARACTERS, word_counts._TEXTS_AT_ONCE = most_characters, 1
    texts = open(sys.argv[1], encoding="utf-8")
    print(hashlib.sha256("\\n".join(train_vocabulary(texts, int(sys.argv[2]))).encode()).hexdigest())
"""


@pytest.mark.slow
def test_vocabulary_is_the_same_in_every_process_hash_seed_and_thread_count(tmp_path: Path) -> None:
    # Many pairs are equally frequent: by itself the trainer gives another vocabulary in most runs.
    draw = np.random.default_rng(2)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyzäöüß가나다라마바사"))
    lines = (" ".join("".join(draw.choice(letters, size=6)) for _ in range(12)) for _ in range(1500))
    text = "\n".join(f"{line}\n{line}" for line in lines)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    digests = set()
    for seed, threads in [("0", "1"), ("1", "2"), ("2", "2"), ("3", "1")]:
        environment = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
        command = [sys.executable, "-c", TRAIN_SCRIPT, tmp_path / "text.txt", "2048"]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1


def test_vocabulary_does_not_depend_on_how_the_text_is_cut_into_texts() -> None:
    whole = "\n".join(sample_texts())
    assert train_vocabulary([whole], 1024) == train_vocabulary(whole.split("\n"), 1024)


def test_order_is_specials_letters_continuing_letters_joined_pieces() -> None:
    vocabulary = train_vocabulary(sample_texts(), 1024)
    assert len(vocabulary) == len(set(vocabulary)) == 1024
    assert tuple(vocabulary[:5]) == SPECIAL_TOKENS
    kinds = [0 if len(p) == 1 else 1 if len(p) == 3 and p.startswith("##") else 2 for p in vocabulary[5:]]
    ends = [kinds.index(1), kinds.index(2)]
    letters, continuing = vocabulary[5 : 5 + ends[0]], vocabulary[5 + ends[0] : 5 + ends[1]]
    assert letters == sorted(letters) and continuing == sorted(continuing)
    assert 1 not in kinds[ends[1] :] and 0 not in kinds[ends[1] :]


def test_the_alphabet_holds_each_letter_seen_twice_and_continuing_forms_only_of_letters_that_continue() -> None:
    text = ["Bb cc 中中 文, ?? 가가 é é q"]
    vocabulary = train_vocabulary(text)
    pieces = {p for p in vocabulary if not p.startswith("[")}
    assert {p for p in pieces if len(p) == 1} == {"b", "c", "中", "?", "가", "é"}
    assert {p for p in pieces if len(p) == 3 and p.startswith("##")} == {"##b", "##c", "##가", "##é"}


def chinese_texts(english: int = 0) -> list[str]:
    """Characters of which 1,000 make 86 % and 3,000 make 99.8 %, about as in Chinese, with some words between."""
    draw = np.random.default_rng(2)
    chances = np.exp(-np.arange(5000) / 500)
    ranks = draw.choice(5000, size=150_000, p=chances / chances.sum())
    words = np.array(["".join(draw.choice(list("abcdefghijkl"), size=draw.integers(2, 9))) for _ in range(4000)])
    texts = []
    for start in range(0, len(ranks), 30):
        texts.append("".join(chr(0x4E00 + rank) for rank in ranks[start : start + 30]))
        texts[-1] += " ".join(["", *draw.choice(words, size=english)])
    return texts


def share_unknown(vocabulary: list[str], texts: list[str]) -> float:
    ids = [i for ids in WordPieceTokenizer(vocabulary, True, False).encode(texts) for i in ids]
    return ids.count(vocabulary.index("[UNK]")) / len(ids)


@pytest.mark.slow
def test_a_vocabulary_of_chinese_holds_every_character_that_occurs_twice() -> None:
    texts = chinese_texts()
    vocabulary = train_vocabulary(texts)
    counts = Counter("".join(texts))
    assert set(vocabulary) >= {character for character, n in counts.items() if n >= 2}
    once = sum(n == 1 for n in counts.values()) / sum(counts.values())
    assert share_unknown(vocabulary, texts) == pytest.approx(once)
    # Not filled up with names that stand for nothing.
    assert sum(entry.startswith("[unused") for entry in vocabulary) < 64
    assert len(train_vocabulary(texts, 2560)) == 2560


@pytest.mark.slow
def test_words_between_chinese_leave_room_for_its_characters() -> None:
    texts = chinese_texts(english=8)
    vocabulary = train_vocabulary(texts, 8192)
    counts = Counter(character for text in texts for character in text if character > "\u4e00")
    once = sum(n == 1 for n in counts.values()) / sum(counts.values())
    assert share_unknown(vocabulary, texts) < once + 0.0005
    assert sum(len(entry.removeprefix("##")) > 1 for entry in vocabulary) > 3500


def test_letters_of_a_small_vocabulary_are_the_most_frequent_and_ties_go_by_code_point() -> None:
    text = " ".join("!" * 9 + "$" * 5 + "a" * 7 + "%%" + "&&&" + "((" + "))")
    # Five specials, then: ! (1 entry), a (2), $ (1), & (1), then % ( ) tie and only "%" and "(" fit.
    assert train_vocabulary([text], 12) == [*SPECIAL_TOKENS, "!", "$", "%", "&", "(", "a", "##a"]


def joined_by_brute_force(words: Counter[str], letters: list[str], continuing: list[str]) -> list[str]:
    """Joins the most frequent pair, all counted again each time; ties go to the pair of the older pieces."""
    age = {piece: i for i, piece in enumerate([*continuing, *letters])}
    spelled = {word: [word[0], *("##" + letter for letter in word[1:])] for word in words}
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in spelled.items():
            for pair in zip(pieces, pieces[1:], strict=False):
                pairs[pair] += words[word]
        if not pairs or max(pairs.values()) < 2:
            return list(age)[len(letters) + len(continuing) :]
        left, right = min(pairs, key=lambda pair: (-pairs[pair], age[pair[0]], age[pair[1]]))
        new = left + right.removeprefix("##")
        age.setdefault(new, len(age))
        for pieces in spelled.values():
            for i in range(len(pieces) - 2, -1, -1):
                if pieces[i : i + 2] == [left, right]:
                    pieces[i : i + 2] = [new]


# No letter occurs twice in a word: how often "aaa" holds (a, a) is a matter of taste.
short_words = st.lists(st.sampled_from("abcdeé"), min_size=1, max_size=6, unique=True).map("".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(short_words, min_size=1, max_size=25))
def test_pairs_are_joined_in_the_order_of_brute_force(words: list[str]) -> None:
    text = " ".join(words + words)
    vocabulary = [piece for piece in train_vocabulary([text]) if not piece.startswith("[")]
    letters = sorted(set("".join(words)))
    continuing = [f"##{letter}" for letter in letters]
    expected = joined_by_brute_force(Counter(words + words), letters, continuing)
    assert vocabulary == [*letters, *continuing, *expected]


def test_a_size_the_text_does_not_support_is_refused_with_one_that_works() -> None:
    with pytest.raises(PrepError, match="fewer than --vocab-size 65536") as caught:
        train_vocabulary(sample_texts(), 65536)
    numbers = re.search(r"only (\d+) WordPiece.*use --vocab-size (\d+) \(or auto\)", str(caught.value))
    supported, remedy = map(int, numbers.groups())
    assert remedy % 64 == 0 and remedy <= supported < remedy + 64
    assert len(train_vocabulary(sample_texts(), remedy)) == remedy
    with pytest.raises(PrepError, match="use --vocab-size auto$"):
        train_vocabulary(["one day and another day"], 64)


def test_an_automatic_size_is_filled_up_to_a_multiple_of_64() -> None:
    vocabulary = train_vocabulary(["one fine day and another fine day"])
    unused = [p for p in vocabulary if p.startswith("[unused")]
    assert len(vocabulary) == 64 and unused == [f"[unused{i}]" for i in range(len(unused))] != []
    assert vocabulary[-len(unused) :] == unused


@pytest.mark.parametrize("text", ["", "abc", " \n\t "])
def test_no_text_is_refused(text: str) -> None:
    with pytest.raises(PrepError, match="give more text"):
        train_vocabulary([text])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=9), st.sampled_from([1, 10, 30_000])), max_size=5))
def test_characters_are_counted(parts: list[tuple[str, int]]) -> None:
    texts = [text * times for text, times in parts]
    counts = count_characters(texts)
    expected = Counter("".join(texts))
    # Texts are joined with line breaks and cut anywhere, which no letter notices.
    assert {chr(i): int(counts[i]) for i in np.flatnonzero(counts) if i != 10} == {
        c: n for c, n in expected.items() if c != "\n"
    }


@pytest.mark.parametrize(
    ("character", "number", "size"),
    [("a", 19_999_999, 8192), ("a", 20_000_000, 16384), ("é", 10_000_000, 16384), ("가", 6_666_666, 8192),
     ("가", 66_666_667, 30528), ("😀", 5_000_000, 16384), ("a", 199_999_999, 16384)],
)  # fmt: skip
def test_automatic_size_goes_by_utf8_bytes(character: str, number: int, size: int) -> None:
    counts = np.zeros(0x110000, dtype=np.int64)
    counts[ord(character)] = number
    assert automatic_size(counts) == size


# Encoding


def greedy_wordpiece(word: str, ids: dict[str, int]) -> list[int]:
    """Longest match first; [UNK] for a word that cannot be spelled or passes 100 letters."""
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in ids:
                found.append(ids[piece])
                start = end
                break
        else:
            return [ids["[UNK]"]]
    return found if len(word) <= 100 else [ids["[UNK]"]]


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.text("abcdeinglortu가나다é7Q", min_size=1, max_size=12), max_size=6))
def test_ids_are_those_of_greedy_longest_match(plain: WordPieceTokenizer, words: list[str]) -> None:
    ids = {piece: i for i, piece in enumerate(plain.vocabulary)}
    expected = [i for word in words for i in greedy_wordpiece(word.lower(), ids)]
    assert plain.encode([" ".join(words)]) == [expected]


def test_a_literal_mask_in_the_text_is_text(plain: WordPieceTokenizer) -> None:
    [ids] = plain.encode(["fill [MASK] and [SEP] here [PAD]"])
    assert not {plain.mask_id, plain.sep_id, plain.pad_id} & set(ids)
    assert plain.decode(ids).replace(" ", "") == "fill[mask]and[sep]here[pad]"


def test_accents_and_syllables_stay_unless_stripping_is_asked_for() -> None:
    vocabulary = train_vocabulary(sample_texts(), 1024)
    kept, stripped = (WordPieceTokenizer(vocabulary, True, strip) for strip in (False, True))
    assert kept.decode(kept.encode(["über 가나다"])[0]) == "über 가나다"
    assert stripped.encode(["über"]) == stripped.encode(["uber"]) != kept.encode(["über"])


def test_facts_about_the_entries(plain: WordPieceTokenizer) -> None:
    padded = WordPieceTokenizer([*plain.vocabulary, "[unused0]", "[unused12]", "[other]"], True, False)
    assert [padded.pad_id, padded.unk_id, padded.cls_id, padded.sep_id, padded.mask_id] == [0, 1, 2, 3, 4]
    assert padded.vocab_size == len(padded.starts_word) == len(padded.is_ordinary) == 1027
    assert padded.starts_word.tolist() == [p[:2] != "##" for p in padded.vocabulary]
    not_ordinary = {padded.vocabulary[i] for i in np.flatnonzero(~padded.is_ordinary)}
    assert not_ordinary == {*SPECIAL_TOKENS, "[unused0]", "[unused12]"}


def test_pickle_keeps_everything_and_is_small(tokenizer: WordPieceTokenizer) -> None:
    pickled = pickle.dumps(tokenizer)
    copy = pickle.loads(pickled)
    assert copy.digest() == tokenizer.digest() and copy.encode(AWKWARD) == tokenizer.encode(AWKWARD)
    assert len(pickled) < 20 * tokenizer.vocab_size


def test_digest_sees_the_order_and_every_option(plain: WordPieceTokenizer) -> None:
    swapped = [*plain.vocabulary[:-2], plain.vocabulary[-1], plain.vocabulary[-2]]
    variants = [
        plain,
        WordPieceTokenizer(swapped, True, False),
        WordPieceTokenizer(plain.vocabulary, False, False),
        WordPieceTokenizer(plain.vocabulary, True, True),
        WordPieceTokenizer(plain.vocabulary, True, False, split_chinese=False),
    ]
    assert len({variant.digest() for variant in variants}) == len(variants)


# The folder


def folder_bytes(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_saving_writes_three_files_with_equal_bytes_every_time(tokenizer: WordPieceTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "a", model_max_length=128)
    pickle.loads(pickle.dumps(tokenizer)).save(tmp_path / "b", model_max_length=128)
    tokenizer.save(tmp_path / "b", model_max_length=128)
    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "b")
    assert set(folder_bytes(tmp_path / "a")) == {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}
    assert (tmp_path / "a" / "vocab.txt").read_bytes().decode().split("\n")[:-1] == list(tokenizer.vocabulary)


def test_a_folder_loads_back(tokenizer: WordPieceTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path, model_max_length=128)
    assert WordPieceTokenizer.load(tmp_path).digest() == tokenizer.digest()
    (tmp_path / "tokenizer.json").unlink()
    assert WordPieceTokenizer.load(tmp_path).digest() == tokenizer.digest()


@pytest.mark.parametrize("with_model_config", [True, False])
def test_transformers_gives_the_same_ids_and_its_folder_loads_back(
    tokenizer: WordPieceTokenizer, tmp_path: Path, with_model_config: bool
) -> None:
    from transformers import AutoTokenizer

    tokenizer.save(tmp_path / "ours", model_max_length=77)
    if with_model_config:
        (tmp_path / "ours" / "config.json").write_text('{"model_type": "bert"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path / "ours")
    printable = [chr(code) + "a" + chr(code) for code in range(1, 0x3100) if chr(code).isprintable()]
    texts = [
        *sample_texts()[::5],
        *AWKWARD,
        *(" ".join(printable[first : first + 64]) for first in range(0, len(printable), 64)),
    ]
    texts = [text for text in texts if not any(token in text for token in SPECIAL_TOKENS)]
    assert theirs(texts, add_special_tokens=False)["input_ids"] == tokenizer.encode(texts)
    assert theirs.model_max_length == 77
    assert theirs("a [MASK]")["input_ids"][-2] == theirs.mask_token_id == tokenizer.mask_id
    pair = theirs("a", "b")
    [a], [b] = tokenizer.encode(["a", "b"])
    assert pair["input_ids"] == [tokenizer.cls_id, a, tokenizer.sep_id, b, tokenizer.sep_id]
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]
    assert theirs.decode(pair["input_ids"]) == tokenizer.decode(pair["input_ids"])

    theirs.save_pretrained(tmp_path / "theirs")
    back = WordPieceTokenizer.load(tmp_path / "theirs")
    assert back.digest() == tokenizer.digest() and back.encode(AWKWARD) == tokenizer.encode(AWKWARD)


def test_tokenizer_json_alone_is_a_complete_bert_tokenizer(tokenizer: WordPieceTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path, model_max_length=128)
    alone = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = [text for text in AWKWARD if not any(token in text for token in SPECIAL_TOKENS)]
    assert [e.ids for e in alone.encode_batch(texts, add_special_tokens=False)] == tokenizer.encode(texts)
    pair = alone.encode("a [MASK]", "b")
    assert pair.tokens == ["[CLS]", "a", "[MASK]", "[SEP]", "b", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 0, 1, 1]
    assert alone.decode(pair.ids, skip_special_tokens=True) == "a b"


@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("split_chinese", [True, False])
def test_a_bert_tokenizer_of_transformers_loads_with_its_options(
    plain: WordPieceTokenizer, tmp_path: Path, strip_accents: bool | None, split_chinese: bool
) -> None:
    from transformers import BertTokenizerFast

    (tmp_path / "pieces.txt").write_text("\n".join(plain.vocabulary) + "\n", encoding="utf-8")
    options = {"strip_accents": strip_accents, "tokenize_chinese_chars": split_chinese}
    theirs = BertTokenizerFast(str(tmp_path / "pieces.txt"), **options)
    theirs.save_pretrained(tmp_path)
    ours = WordPieceTokenizer.load(tmp_path)
    assert ours.strip_accents == (strip_accents is not False) and ours.split_chinese == split_chinese
    texts = [text for text in [*AWKWARD, "中文中文 über"] if "[" not in text]
    assert ours.encode(texts) == theirs(texts, add_special_tokens=False)["input_ids"]


def test_a_bare_vocabulary_tells_its_options_by_its_entries(tmp_path: Path) -> None:
    def load(*pieces: str) -> tuple[bool, bool]:
        (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *pieces]) + "\n", encoding="utf-8")
        got = WordPieceTokenizer.load(tmp_path / "vocab.txt")
        assert got.vocabulary == (*SPECIAL_TOKENS, *pieces)
        return got.lowercase, got.strip_accents

    assert load("a", "##b") == (True, True)
    assert load("a", "[ENTITY]") == (True, True)
    assert load("a", "über") == (True, False)
    assert load("a", "가") == (True, False)
    assert load("a", "Berlin") == (False, False)


def test_a_vocabulary_with_windows_line_ends_and_a_byte_order_mark_loads(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("\ufeff".encode() + "\r\n".join([*SPECIAL_TOKENS, "a"]).encode())
    assert WordPieceTokenizer.load(tmp_path / "vocab.txt").vocabulary == (*SPECIAL_TOKENS, "a")


def edited(tokenizer: WordPieceTokenizer, folder: Path, edit: str) -> None:
    tokenizer.save(folder, model_max_length=128)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    exec(edit, {}, {"content": content, "vocab": content["model"]["vocab"]})
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            "content['model']['type'] = 'BPE'",
            "not a BERT WordPiece tokenizer, its model is BPE, not WordPiece",
        ),
        ("content['normalizer']['type'] = 'NFC'", "its normalizer is NFC, not BertNormalizer"),
        ("content['normalizer'] = None", "its normalizer is None, not BertNormalizer"),
        ("content['pre_tokenizer']['type'] = 'Whitespace'", "its pre_tokenizer is Whitespace"),
        ("content['model']['continuing_subword_prefix'] = '@@'", "its continuing prefix is @@"),
        (
            "vocab.pop('[MASK]'); vocab['z' * 9] = 4; content['added_tokens'].pop()",
            "lacks the special tokens [MASK]",
        ),
        ("vocab['a'] = 5000", "do not run from 0 to 1023"),
        ("vocab['a'] = vocab['b']", "do not run from 0 to 1023"),
        (
            "content['added_tokens'].append({'id': 1030, 'content': '<e1>'})",
            "gives the added token '<e1>' the id 1030 instead of 1024",
        ),
    ],
)
def test_a_foreign_tokenizer_json_is_refused(
    plain: WordPieceTokenizer, tmp_path: Path, edit: str, message: str
) -> None:
    edited(plain, tmp_path, edit)
    with pytest.raises(PrepError) as caught:
        WordPieceTokenizer.load(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "tokenizer.json")) and message in str(caught.value)


def test_an_old_tokenizer_json_without_a_model_type_loads(plain: WordPieceTokenizer, tmp_path: Path) -> None:
    edited(plain, tmp_path, "del content['model']['type']")
    assert WordPieceTokenizer.load(tmp_path).digest() == plain.digest()


def test_a_real_bpe_tokenizer_is_refused(tmp_path: Path) -> None:
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(PrepError, match="its model is BPE"):
        WordPieceTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n", "holds 'a' twice, as entries 6 and 8"),
        ("vocab.txt", "[PAD]\n[UNK]\na\n", r"lacks the special tokens \[CLS\], \[SEP\], \[MASK\]"),
        ("vocab.txt", "", "lacks the special tokens"),
        ("vocab.txt", b"[PAD]\n\xff\xfe", "is not UTF-8 at byte 6"),
        ("tokenizer.json", '{"model": {\n', "is not valid JSON at line 2"),
        ("tokenizer.json", "[]", "does not hold a JSON object"),
        ("tokenizer.json", "{}", "its model is None, not WordPiece"),
        ("tokenizer_config.json", "{", "is not valid JSON at line 1"),
        ("readme.txt", "x", "holds neither tokenizer.json nor vocab.txt"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PrepError, match=message) as caught:
        WordPieceTokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrepError, match="cannot read .*nothing"):
        WordPieceTokenizer.load(tmp_path / "nothing")


def test_the_module_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, data_prep.vocabulary.wordpiece\n"
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)


def test_letters_take_at_most_half_of_a_large_vocabulary():
    """Letters take at most half of the entries, however many the text has, where these are over 2,000."""
    frequent = [_Letter(chr(0x4E00 + number), 9, False) for number in range(3000)]
    assert len(_alphabet(frequent, 4096)[0]) == 2048


def test_letters_that_are_words_are_covered_as_well_as_others():
    """Letters that are words of their own are covered as well as those that words are written with."""
    latin = [_Letter(chr(ord("a") + number), 10_000, True) for number in range(26)]
    chinese = [_Letter(chr(0x4E00 + number), 9, False) for number in range(2000)]
    assert _needed(latin + chinese) == 26 + 1999
    assert _needed(latin) == 26
