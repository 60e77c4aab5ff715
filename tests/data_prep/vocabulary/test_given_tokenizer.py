"""Tokenizers of transformers with tokens of their own and another limit of words: read, used and saved as they are."""

import json
import pickle
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from data_prep.errors import PrepError
from data_prep.vocabulary.wordpiece import SPECIAL_TOKENS, WordPieceTokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyzé0123456789.,-[]<>#"
PIECES = [*SPECIAL_TOKENS, "[unused1]", *LETTERS, *(f"##{c}" for c in LETTERS), "drug", "##ing", "in"]
ADDED = [
    AddedToken("[DRUG]"),
    AddedToken("Covid-19"),
    AddedToken("<e1>", special=True),
    AddedToken("in", single_word=True),
    AddedToken("Émile", normalized=False),
    AddedToken("mg", single_word=True, lstrip=True),
    AddedToken("<gap>", rstrip=True, lstrip=True, special=True),
    AddedToken("[unused1]"),
    AddedToken("drug drug"),
]
WORDS = st.one_of(
    st.sampled_from([token.content for token in ADDED]),
    st.sampled_from(["COVID-19", "covid-19", "émile", "Emile", "DRUG", "drugs", "ing", "MG", "[drug]", "e1", "中"]),
    st.builds(lambda letter, times: letter * times, st.sampled_from("aé"), st.integers(7, 10)),
    st.text("abéÉ mging<>[]-#", max_size=6),
)
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from(["", " ", "  ", ".", "-"]))).map(
    lambda parts: "".join(word + space for word, space in parts)
)


def made_by_transformers(folder: Path, lowercase: bool = True, added: list[AddedToken] = ADDED):
    from transformers import BertTokenizerFast

    folder.mkdir(parents=True)
    (folder / "pieces.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    theirs = BertTokenizerFast(str(folder / "pieces.txt"), do_lower_case=lowercase)
    theirs.add_tokens([token for token in added if not token.special])
    theirs.add_tokens([token for token in added if token.special], special_tokens=True)
    theirs.save_pretrained(folder)
    return theirs


@cache
def opened_by_transformers(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def ids_of(theirs, text: str) -> list[int]:
    return theirs(text, add_special_tokens=False)["input_ids"]


def with_limit(folder: Path, limit: int) -> None:
    """As somebody saves a tokenizer with another limit: the class is the general one."""
    path, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
    content = json.loads(path.read_text())
    content["model"]["max_input_chars_per_word"] = limit
    path.write_text(json.dumps(content))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))


@pytest.fixture(scope="module", params=["uncased", "cased", "limit of 8"])
def sides(request, tmp_path_factory):
    """A folder of transformers opened by them and by us, and what we save of it opened by them."""
    folder = tmp_path_factory.mktemp("given")
    theirs = made_by_transformers(folder / "theirs", lowercase=request.param != "cased")
    if request.param == "limit of 8":
        with_limit(folder / "theirs", 8)
        theirs = opened_by_transformers(folder / "theirs")
    ours = WordPieceTokenizer.load(folder / "theirs")
    ours.save(folder / "ours", 64)
    ours.extended(["drugging", "##bb"]).save(folder / "extended", 64)
    # Beside a model.
    (folder / "extended" / "config.json").write_text('{"model_type": "bert"}')
    return theirs, ours, pickle.loads(pickle.dumps(ours)), folder


@settings(max_examples=200)
@given(text=TEXTS)
def test_texts_have_the_ids_of_the_original(sides, text):
    theirs, ours, of_another_process, _ = sides
    expected = ids_of(theirs, text)
    assert ours.encode([text]) == of_another_process.encode([text]) == [expected]


@settings(max_examples=100)
@given(texts=st.lists(TEXTS, min_size=5, max_size=5))
def test_what_is_saved_gives_the_same_ids_in_transformers(sides, texts):
    _, ours, _, folder = sides
    for name, tokenizer in (("ours", ours), ("extended", ours.extended(["drugging", "##bb"]))):
        theirs = opened_by_transformers(folder / name)
        assert [ids_of(theirs, text) for text in texts] == tokenizer.encode(texts)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("unsaid", [["do_lower_case", "strip_accents"], ["strip_accents"], ["tokenize_chinese_chars"]])
def test_what_the_config_does_not_say_is_as_transformers_has_it(tmp_path, lowercase, unsaid):
    made_by_transformers(tmp_path / "theirs", lowercase, added=[])
    config, full = tmp_path / "theirs/tokenizer_config.json", tmp_path / "theirs/tokenizer.json"
    said = json.loads(config.read_text()) | {"do_lower_case": lowercase}
    config.write_text(json.dumps({name: value for name, value in said.items() if name not in unsaid}))
    content = json.loads(full.read_text())
    content["normalizer"] |= {"strip_accents": False, "handle_chinese_chars": False, "lowercase": lowercase}
    full.write_text(json.dumps(content))
    (tmp_path / "theirs/config.json").write_text('{"model_type": "bert"}')
    theirs, ours = opened_by_transformers(tmp_path / "theirs"), WordPieceTokenizer.load(tmp_path / "theirs")
    text = "Émile INDRUG é a中b"
    assert ours.encode([text]) == [ids_of(theirs, text)]


def test_ids_and_sizes(sides):
    theirs, ours, _, folder = sides
    assert ours.vocab_size == len(theirs) == len(PIECES) + 7
    assert {token.content: ours.vocabulary.index(token.content) for token in ADDED} == {
        token.content: theirs.convert_tokens_to_ids(token.content) for token in ADDED
    }
    longer = ours.extended(["drugging"])
    assert longer.vocabulary == (*ours.vocabulary, "drugging") and longer.begins_with(ours)
    assert not ours.begins_with(longer) and ours.begins_with(ours)
    names = [token.content for token in ADDED]
    assert longer.encode(names) == ours.encode(names)
    for name, tokenizer in (("ours", ours), ("extended", ours.extended(["drugging", "##bb"]))):
        back = WordPieceTokenizer.load(folder / name)
        assert back.digest() == tokenizer.digest() and back.longest_word == ours.longest_word
    special = {"<e1>", "<gap>", "[unused1]", *SPECIAL_TOKENS}
    assert {entry for entry, yes in zip(ours.vocabulary, ours.is_ordinary, strict=True) if not yes} == special


def test_the_five_special_tokens_written_as_text_are_text(sides):
    _, ours, _, _ = sides
    [ids] = ours.encode(["[MASK] in [SEP][CLS]"])
    assert not {ours.mask_id, ours.sep_id, ours.cls_id} & set(ids) and ours.vocabulary.index("in") in ids


def test_tokenizer_json_alone_says_the_same(sides):
    _, ours, _, folder = sides
    alone = Tokenizer.from_file(str(folder / "ours" / "tokenizer.json"))
    text = "in Covid-19 <e1> 5 mg <gap>  drugs aaaaaaaa aaaaaaaaa"
    assert alone.encode(text, add_special_tokens=False).ids == ours.encode([text])[0]
    (folder / "plain").mkdir(exist_ok=True)
    for name in ("vocab.txt", "tokenizer_config.json"):
        (folder / "plain" / name).write_bytes((folder / "ours" / name).read_bytes())
    if ours.longest_word == 100:
        assert WordPieceTokenizer.load(folder / "plain").digest() == ours.digest()


def test_a_folder_of_old_has_its_added_tokens_in_files_of_their_own(tmp_path):
    from transformers import BertTokenizerFast

    size = len(PIECES)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<e1>": size + 1, "covid-19": size}))
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"mask_token": "[MASK]", "additional_special_tokens": ["<e1>", "[unused1]"]})
    )
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    theirs, ours = BertTokenizerFast.from_pretrained(tmp_path), WordPieceTokenizer.load(tmp_path)
    assert {token.content: (token.special, token.normalized) for token in ours.added} == {
        "covid-19": (False, True), "<e1>": (True, False), "[unused1]": (True, False)
    }  # fmt: skip
    text = "COVID-19 in<e1>in [unused1] drugs"
    assert ours.encode([text]) == [ids_of(theirs, text)] and {size, size + 1} < set(ours.encode([text])[0])


def test_tokenizers_without_their_own_tokens_have_the_digest_of_before():
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "a", "##b"], True, False)
    assert tokenizer.digest() == "63c33d3ca0f6c87244015ea9ebd2ebd77a132f0d11dace9e22297fb200a4470f"
    variants = [
        tokenizer,
        WordPieceTokenizer(tokenizer.pieces, True, False, longest_word=99),
        WordPieceTokenizer(tokenizer.pieces, True, False, added=[AddedToken("a")]),
        WordPieceTokenizer(tokenizer.pieces, True, False, added=[AddedToken("a", lstrip=True)]),
        WordPieceTokenizer(tokenizer.pieces, True, False, added=[AddedToken("b")]),
    ]
    assert len({variant.digest() for variant in variants}) == len(variants)


@pytest.mark.parametrize(("edit", "message"), [
    ("tokens[-1]['id'] += 3", "gives the added token 'drug drug' the id"),
    ("tokens[-1]['id'] = 5", "gives the added token 'drug drug' the id 5"),
    ("tokens[-1]['lstrip'] = 'yes'", "not a tokenizer in the form of transformers"),
    ("tokens[-1]['content'] = ''", "not a tokenizer in the form of transformers"),
    ("del tokens[-1]['id']", "not a tokenizer in the form of transformers"),
    ("content['added_tokens'] = 7", "not a tokenizer in the form of transformers"),
    ("content['model']['max_input_chars_per_word'] = 'many'", "max_input_chars_per_word is 'many'"),
    ("content['model']['max_input_chars_per_word'] = 0", "max_input_chars_per_word is 0"),
])  # fmt: skip
def test_what_is_wrong_with_added_tokens_is_one_sentence(tmp_path, edit, message):
    made_by_transformers(tmp_path / "theirs", added=[AddedToken("drug drug")])
    # transformers 4 writes them there too, and reads them there.
    config_file = tmp_path / "theirs" / "tokenizer_config.json"
    config = json.loads(config_file.read_text())
    config.pop("added_tokens_decoder", None)
    config_file.write_text(json.dumps(config))
    path = tmp_path / "theirs" / "tokenizer.json"
    content = json.loads(path.read_text())
    exec(edit, {}, {"content": content, "tokens": content["added_tokens"]})
    path.write_text(json.dumps(content))
    with pytest.raises(PrepError) as caught:
        WordPieceTokenizer.load(tmp_path / "theirs")
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)
