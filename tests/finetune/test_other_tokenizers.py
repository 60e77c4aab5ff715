"""Tokenizers of models that transformers computes: the same ids, places and words as it gives."""

import json
import shutil
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.errors import PrepError
from data_prep.vocabulary.transformers_tokenizer import TransformersTokenizer
from finetune.batches import BatchMaker, encode_texts
from finetune.words import encode_words, joined, words_of

FAMILY_NAMES = ("roberta", "albert")
OTHERS = ("modernbert", "electra", "xlm-roberta")
letters = st.text(st.sampled_from("aehrt7.,- '\n\té\u0301中😀ﬁ\u00a0İ"), min_size=1, max_size=30)
texts = letters.filter(str.strip)


@pytest.fixture(
    scope="module", params=[*FAMILY_NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def both(request, other_encoder):
    """Ours, and the one that transformers opens."""
    from transformers import AutoTokenizer

    folder = other_encoder(request.param)
    ours = TransformersTokenizer.load(folder, has_segments=request.param in ("albert", "electra"))
    return ours, AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def of_sentencepiece(tmp_path_factory):
    """A folder with a model of SentencePiece alone, as DeBERTa-v3 comes."""
    import sentencepiece

    folder = tmp_path_factory.mktemp("deberta")
    (folder / "text.txt").write_text("".join(f"the patient's heart rate was {n}, stable.\n" for n in range(300)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "spm"), vocab_size=50, minloglevel=2, pad_id=0,
        bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]",
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "deberta-v2", "vocab_size": 50}))
    return folder


def test_a_model_of_sentencepiece_is_read_without_the_json_of_its_tokenizer(of_sentencepiece, monkeypatch):
    import sentencepiece

    ours = TransformersTokenizer.load(of_sentencepiece, has_segments=False)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(of_sentencepiece / "spm.model"))
    found = ["the heart rate", "patients, 77 stable.", "rate"]
    assert ours.encode(found) == theirs.encode(found)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(PrepError, match="model of SentencePiece alone.*: pip install sentencepiece protobuf"):
        TransformersTokenizer.load(of_sentencepiece, has_segments=False)


@given(st.lists(texts, min_size=1, max_size=4))
@settings(max_examples=40)
def test_ids_and_places_are_those_of_transformers(both, found):
    ours, theirs = both
    expected = theirs(found, add_special_tokens=False, return_offsets_mapping=True)
    assert ours.encode(found) == expected["input_ids"]
    for text, (ids, places), offsets in zip(
        found, ours.encode_with_places(found), expected["offset_mapping"], strict=True
    ):
        assert len(ids) == len(places)
        for (start, end), (first, last) in zip(places, offsets, strict=True):
            assert end == last and text[first:start].strip() == "" and not text[start:end][:1].isspace()


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3), st.integers(8, 40))
@settings(max_examples=40)
def test_pairs_are_put_together_and_cut_as_in_transformers(both, pairs, length):
    ours, theirs = both
    encoded = encode_texts(pairs, np.zeros(len(pairs)), ours, length, "head")
    for number, (first, second) in enumerate(pairs):
        if not all(ours.encode([first, second])):
            continue
        batch = BatchMaker(encoded, ours, 10**6).packed(np.array([number]))
        expected = theirs(
            first, second, truncation="longest_first", max_length=length, return_token_type_ids=ours.tells_segments
        )
        assert batch.input_ids.tolist() == expected["input_ids"] and batch.max_sequence_length <= length
        types = expected["token_type_ids"] if ours.tells_segments else [0] * len(expected["input_ids"])
        assert batch.token_type_ids.tolist() == types


ORDINARY = ["The", "rate", "don't", "café", "7."]


@given(st.lists(st.text("aehrt7.,-'éa😀", min_size=1, max_size=6), min_size=1, max_size=8))
@example(ORDINARY)
@settings(max_examples=60)
def test_words_begin_where_transformers_begins_them(both, words):
    """Of words that were cut before, the first one apart: byte-level pieces begin a text without a blank."""
    ours, theirs = both
    text, spans = joined(words)
    ((ids, first),) = ours.encode_words([(text, spans)])
    assert ids == ours.encode([text])[0]
    if type(theirs).__name__.startswith("Roberta"):
        # Instantiated as transformers asks for where words are cut before.
        theirs = type(theirs).from_pretrained(theirs.name_or_path, add_prefix_space=True)
        ours = TransformersTokenizer(theirs, {}, False)
        ((ids, first),) = ours.encode_words([(text, spans)])
    elif not all(ours.encode(words)) or ours.encode([f" {words[0]}"]) != ours.encode([words[0]]):
        return
    expected = theirs(words, is_split_into_words=True, add_special_tokens=False)
    assert words != ORDINARY or expected["input_ids"] == ids
    if expected["input_ids"] == ids:
        assert first == [expected.word_ids().index(number) for number in range(len(words))]


def test_words_of_a_text_are_read_where_they_stand(both):
    ours, _ = both
    text = " \u00a0The patient's rate\tdon't\n\nstop.Go\u00a0on"
    spans = words_of(text)
    ((ids, first),) = ours.encode_words([(text, spans)])
    assert ids == ours.encode([text])[0] and first == sorted(first)
    (_, places), *_ = ours.encode_with_places([text])
    assert first == first_by_hand(text, spans, places)
    encoded = encode_words([(text, spans)], np.arange(len(spans)), ours, 8)
    assert sorted(encoded.item.tolist()) == list(range(len(spans))) and encoded.num_long == 1


def first_by_hand(text, words, places):
    """Of each word the first token that starts in it, else the last one that starts before; but no token of white space
    other than a blank."""
    found = []
    numbered = [
        (at, start) for at, (start, stop) in enumerate(places) if start < stop or not start or text[start - 1] == " "
    ]
    for begin, end in words:
        inside = [at for at, start in numbered if begin <= start < end]
        before = [at for at, start in numbered if start <= begin]
        found.append((inside or before[-1:] or [0])[0])
    return found


@given(texts.filter(words_of))
@settings(max_examples=40)
def test_a_word_begins_with_no_tab_or_line_break(both, text):
    ours, _ = both
    spans = words_of(text)
    ((ids, first),) = ours.encode_words([(text, spans)])
    ((_, places),) = ours.encode_with_places([text])
    if any(start < end for start, end in places):
        assert first == first_by_hand(text, spans, places)


def test_of_words_that_leave_nothing_something_is_read(both):
    ours, _ = both
    for text in ("", "\u0301"):
        ((ids, first),) = ours.encode_words([(text, [(0, len(text))] * bool(text))])
        assert len(first) == bool(text) and all(0 <= at < len(ids) for at in first)


def test_special_tokens_in_a_text_are_what_somebody_wrote(both):
    ours, _ = both
    written = "the <mask> [MASK] <s> [CLS] </s>"
    found = {ours.cls_id, ours.sep_id} & set(ours.encode([written])[0])
    # A unigram model knows "<s>" as an entry like others, and may find it in a text.
    assert not found or json.loads(ours.files["tokenizer.json"])["model"]["type"] == "Unigram"


def test_tokens_that_were_added_stand_for_themselves(both, tmp_path):
    from transformers import AutoTokenizer

    ours, theirs = both
    theirs = AutoTokenizer.from_pretrained(theirs.name_or_path)
    theirs.add_special_tokens({"additional_special_tokens": ["<e1>", "[DRUG]"]})
    theirs.add_tokens(["plainadd"])
    theirs.save_pretrained(tmp_path)
    shutil.copy(type(tmp_path)(theirs.name_or_path) / "config.json", tmp_path)
    again = TransformersTokenizer.load(tmp_path, ours.tells_segments)
    text = "the <e1> heart<e1> [DRUG] plainadd rate"
    assert again.encode([text]) == [theirs(text, add_special_tokens=False)["input_ids"]]
    assert {theirs.convert_tokens_to_ids(name) for name in ("<e1>", "[DRUG]", "plainadd")} <= {*again.encode([text])[0]}
    assert again.digest() != ours.digest()
    written = "the <mask> [MASK] <s> [CLS] </s>"
    assert again.encode([written]) == ours.encode([written])


def test_files_go_on_as_they_were(both, other_encoder, tmp_path):
    from transformers import AutoTokenizer

    ours, theirs = both
    ours.save(tmp_path, 32)
    source = {path.name: path.read_bytes() for path in type(tmp_path)(theirs.name_or_path).glob("*tok*")}
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    told = ours.tells_segments and "token_type_ids" not in theirs.model_input_names
    assert {name for name in source if source[name] != kept[name]} == ({"tokenizer_config.json"} if told else set())
    shutil.copy(type(tmp_path)(theirs.name_or_path) / "config.json", tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("a rate", "heart")["input_ids"] == theirs("a rate", "heart")["input_ids"]
    assert ("token_type_ids" in again("a", "b")) == ("token_type_ids" in theirs("a", "b") or ours.tells_segments)
    assert TransformersTokenizer.load(tmp_path, ours.tells_segments).digest() == ours.digest()


def test_another_template_or_no_tokenizer_is_refused(other_encoder, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(other_encoder("modernbert"), folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"]["single"] = content["post_processor"]["single"][:-1]
    path.write_text(json.dumps(content))
    with pytest.raises(PrepError, match="in another way"):
        TransformersTokenizer.load(folder, False)
    path.write_text("{")
    with pytest.raises(PrepError, match="transformers cannot open the tokenizer"):
        TransformersTokenizer.load(folder, False)
    path.unlink()
    with pytest.raises(PrepError, match="no vocabulary"):
        TransformersTokenizer.load(folder, False)
    path.symlink_to(other_encoder("modernbert") / "tokenizer.json")
    with pytest.raises(PrepError, match="link out of its folder"):
        TransformersTokenizer.load(folder, False)


def test_a_tokenizer_that_cannot_read_what_it_does_not_know_is_refused(other_encoder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(other_encoder("distilbert"), folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"unk_token": "[NONE]"}))
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["unk_token"] = "[NONE]"
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(PrepError, match="cannot read an unknown character"):
        TransformersTokenizer.load(folder, has_segments=False)
