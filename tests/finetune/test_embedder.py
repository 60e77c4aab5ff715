"""Vectors of texts, words and tokens, beside transformers and beside a slow way to the same."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from pandas import DataFrame
from transformers import AutoModel, AutoTokenizer

from finetune.batches import overlapping
from finetune.predictor import Facts
from finetune.rows import Columns, Example
from finetune.settings import FinetuneError, FinetuneSettings
from finetune.tasks.classification import Classification
from finetune.tasks.tagging import Tagging
from finetune.vectors.embedder import Embedder, Texts
from finetune.vectors.sentence_model import SentenceModel
from finetune.words import encode_tokens, words_of
from model import BertModel
from pretrain.engine.checkpoint import save_model_folder

transformers.utils.logging.disable_progress_bar()

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTH = 16
# Short and long ones in turn, so that an order by length is not the order given.
TEXTS = [f"{'heart rate of the patient ' * (n * 7 % 5)}was {n} [mask] stable, {n * n}." for n in range(12)]
AWKWARD = [
    "a", "😀 heart e\u0301\u0301 ñandú", "x" * 1000, "\u200bheart\u200b rate", "İstanbul 中文 rate",
    "ខ្ញុំ\u200b\u200bទៅ heart",
    "tab\tnew\nline\u00a0wide", "a-b_c...d", "\ufffd\u200b",
]  # fmt: skip
EXACT = 1e-5


class Oracle:
    """The hidden states of transformers, a text at a time, in float64."""

    def __init__(self, folder):
        self.model = AutoModel.from_pretrained(folder).eval().double()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def states(self, ids, layer):
        """[T, H] of a layer, counted from the embeddings."""
        return self.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[layer][0].numpy()

    def ids(self, text, length):
        return self.tokenizer(text, truncation=True, max_length=length)["input_ids"]

    def vectors(self, texts, pooling="mean", layer=-1, length=LENGTH):
        pool = {
            "mean": lambda states: states.mean(0),
            "cls": lambda states: states[0],
            "max": lambda states: states.max(0),
        }
        return np.stack([pool[pooling](self.states(self.ids(text, length), layer)) for text in texts])


@pytest.fixture(scope="module")
def oracle(encoder):
    return Oracle(encoder)


def near(found, expected, share=EXACT):
    """Equal to a share of the largest number."""
    apart, largest = (np.abs(values).max(initial=0) for values in (found - expected, expected))
    return found.shape == expected.shape and apart <= share * largest


# --- texts


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("layer", [0, 1, 2, -1, -2])
def test_vectors_of_every_layer_are_those_of_transformers(encoder, oracle, pooling, layer):
    embedder = Embedder(encoder, pooling=pooling, layer=layer, sequence_length=LENGTH)
    found, expected = embedder.embed(TEXTS), oracle.vectors(TEXTS, pooling, layer)
    assert found.dtype == np.float32 and near(found, expected)
    if (pooling, layer) != ("cls", 0):
        assert np.ptp(found, axis=0).max() > 0.02, "vectors that are all alike prove nothing"


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_in_float64_they_are_equal_to_rounding(encoder, oracle, pooling):
    embedder = Embedder(encoder, pooling=pooling, sequence_length=LENGTH)
    embedder.model.double()
    found = embedder.embed(TEXTS)
    assert found.dtype == np.float64 and near(found, oracle.vectors(TEXTS, pooling), 1e-10)


@pytest.mark.parametrize("tokens", [10**9, 50, 1])
def test_what_is_computed_together_does_not_matter(encoder, oracle, tokens):
    found = Embedder(encoder, sequence_length=LENGTH, micro_batch_tokens=tokens).embed(TEXTS)
    assert near(found, oracle.vectors(TEXTS))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_texts_that_do_not_fit_are_read_in_smaller_parts(encoder, monkeypatch, capsys, pooling):
    embedder = Embedder(encoder, pooling=pooling)
    expected, hidden = embedder.embed(TEXTS), embedder._hidden

    def scarce(batch, only_first):
        if batch.num_tokens > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return hidden(batch, only_first)

    monkeypatch.setattr(embedder, "_hidden", scarce)
    assert near(embedder.embed(TEXTS), expected) and "Out of GPU memory" in capsys.readouterr().err


def test_awkward_texts_are_read_as_transformers_reads_them(encoder, oracle):
    found = Embedder(encoder).embed(AWKWARD)
    # Marks between words of Khmer are spaces here, as in pretraining.
    theirs = [text.replace("\u200b", " ") if "ខ" in text else text for text in AWKWARD]
    assert near(found, oracle.vectors(theirs, length=48))


def test_normalized_vectors_have_length_one(encoder, oracle):
    found, expected = Embedder(encoder, normalize=True).embed(TEXTS), oracle.vectors(TEXTS, length=48)
    assert near(found, expected / np.linalg.norm(expected, axis=1, keepdims=True))


def test_bf16_is_close(encoder):
    exact, found = (Embedder(encoder, precision=name).embed(TEXTS) for name in ("fp32", "bf16"))
    assert found.dtype == np.float32 and near(found, exact, 0.05) and (found != exact).any()


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_a_model_that_is_being_trained_is_put_back(encoder, training):
    embedder = Embedder(encoder, device="cpu")
    expected, before = embedder.embed(TEXTS), embedder.model.train(training).training
    assert (embedder.embed(TEXTS) == expected).all()
    assert embedder.model.training is before is training


def test_no_texts_have_no_vectors(encoder):
    assert Embedder(encoder).embed([]).shape == (0, 32) and Embedder(encoder).embed_words(iter(())) == []


# --- long texts


def windows_by_hand(oracle, text, length):
    """Each token's state in the window where the nearest end that cuts the text is farthest, [CLS] of the first window
    and [SEP] of the last; and the [CLS] of every window."""
    ids = oracle.tokenizer(text, add_special_tokens=False)["input_ids"]
    cls, sep = oracle.tokenizer.cls_token_id, oracle.tokenizer.sep_token_id
    spans = overlapping(len(ids), length - 2)
    states = [oracle.states([cls, *ids[start : start + count], sep], -1) for start, count in spans]
    tokens = []
    for place in range(len(ids)):
        rooms = []
        for number, (start, count) in enumerate(spans):
            before = place - start if number else 10**9
            after = start + count - 1 - place if number < len(spans) - 1 else 10**9
            inside = start <= place < start + count
            rooms.append(min(before, after) if inside else -1)
        best = int(np.argmax(rooms))
        tokens.append(states[best][place - spans[best].start + 1])
    return np.array(tokens).reshape(len(ids), -1), [state[0] for state in states], states[-1][-1]


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("tokens", [10**9, 30])
def test_windows_read_every_token_once(encoder, oracle, pooling, tokens):
    embedder = Embedder(encoder, pooling=pooling, long_text="windows", sequence_length=9, micro_batch_tokens=tokens)
    expected, most = [], 0
    for text in TEXTS:
        inside, firsts, last = windows_by_hand(oracle, text, 9)
        every = np.stack([firsts[0], *inside, last])
        expected.append({"mean": every.mean(0), "max": every.max(0), "cls": np.mean(firsts, axis=0)}[pooling])
        most = max(most, len(firsts))
    assert most > 3 and near(embedder.embed(TEXTS), np.stack(expected))
    assert embedder.num_long == sum(len(oracle.tokenizer(text)["input_ids"]) > 9 for text in TEXTS)


def test_a_text_that_fits_has_the_same_vector_in_windows(encoder):
    short = [text for text in TEXTS if len(text) < 40]
    one, other = (Embedder(encoder, "cpu", long_text=how).embed(short) for how in ("head", "windows"))
    assert len(short) > 2 and (one == other).all()


@given(st.lists(st.integers(0, 70), max_size=6), st.integers(3, 20), st.sampled_from(["head", "windows"]))
def test_tokens_are_read_once_whatever_the_lengths(lengths, sequence_length, long_text):
    texts = [list(range(100 * number, 100 * number + length)) for number, length in enumerate(lengths)]
    kept = texts if long_text == "windows" else [ids[: sequence_length - 2] for ids in texts]
    for read in ("tokens", "all", "first"):
        found = encode_tokens(texts, sequence_length, long_text, read)
        seen = [[] for _ in texts]
        assert found.bounds[-1] == len(found.place) == len(found.item) and len(found.bounds) == len(found.text) + 1
        for number, owner in enumerate(found.text):
            row = found.sequences[number : number + 1]
            start, count = int(row.a_start[0]), int(row.a_length[0])
            tokens = ["[", *found.ids[start : start + count].tolist(), "]"]
            assert len(tokens) <= sequence_length
            places = found.place[found.bounds[number] : found.bounds[number + 1]]
            seen[owner] += [tokens[place] for place in places]
        expected = {"tokens": kept, "all": [["[", *ids, "]"] for ids in kept]}
        if read == "first":
            assert [len(each) for each in seen] == np.bincount(found.text, minlength=len(texts)).tolist()
            assert all(token == "[" for each in seen for token in each)
        else:
            assert seen == expected[read]
        owners = [n for n, ids in enumerate(seen) for _ in ids]
        assert found.item.tolist() == (list(range(len(owners))) if read == "tokens" else owners)
        assert found.num_long == sum(length > sequence_length - 2 for length in lengths)


# --- words and tokens


def test_words_are_the_means_of_their_pieces_as_transformers_numbers_them(encoder, oracle):
    texts = [text for text in [*TEXTS, *AWKWARD] if "ខ" not in text]
    found = Embedder(encoder).embed_words(texts)
    pieces = 0
    for text, words in zip(texts, found, strict=True):
        read = oracle.tokenizer(text, truncation=True, max_length=48)
        states = oracle.states(read["input_ids"], -1)
        numbers = [number for number in read.word_ids() if number is not None]
        owners = sorted(set(numbers))
        expected = [states[[n == owner for n in read.word_ids()]].mean(0) for owner in owners]
        assert len(words["words"]) == len(expected) == len(words["start"]) == len(words["end"])
        assert near(words["vectors"], np.array(expected).reshape(-1, 32))
        assert [text[a:b] for a, b in zip(words["start"], words["end"], strict=True)] == words["words"]
        assert set(zip(words["start"], words["end"], strict=True)) <= set(words_of(text))
        pieces = max(pieces, len(numbers) - len(owners))
    assert pieces > 3, "words of one piece prove nothing"


def test_tokens_are_the_states_of_transformers(encoder, oracle):
    found = Embedder(encoder, layer=1).embed_tokens(TEXTS)
    for text, tokens in zip(TEXTS, found, strict=True):
        read = oracle.tokenizer(text, return_offsets_mapping=True)
        assert tokens["tokens"] == oracle.tokenizer.convert_ids_to_tokens(read["input_ids"])[1:-1]
        assert near(tokens["vectors"], oracle.states(read["input_ids"], 1)[1:-1])
        assert list(zip(tokens["start"], tokens["end"], strict=True)) == read["offset_mapping"][1:-1]


def test_words_of_long_texts_are_all_there(encoder, oracle):
    text = " ".join(TEXTS)
    tokens = Embedder(encoder, sequence_length=9).embed_tokens([text])[0]
    expected, _, _ = windows_by_hand(oracle, text, 9)
    assert near(tokens["vectors"], expected)
    many = " ".join(f"heart{n}" for n in range(10_000))
    words = Embedder(encoder).embed_words([many])[0]
    assert words["words"] == many.split() and words["vectors"].shape == (10_000, 32)


def test_places_are_of_the_text_that_was_given(encoder):
    text = "ខ្ញុំ\u200b\u200b\u200bទៅ\u200b\u200bheart rate"
    words = Embedder(encoder).embed_words([text])[0]
    assert words["words"][-2:] == ["heart", "rate"] and text[words["start"][-1] :] == "rate"


def test_a_list_of_words_keeps_its_words(encoder):
    example = Texts().example("1", {"words": ["the heart-rate", "7"]}, Columns(("words",), None))
    (parts,) = Embedder(encoder).of_parts([example], "words")
    assert parts.names == ["the heart-rate", "7"]
    tokens = Embedder(encoder).embed_tokens(["the heart-rate 7"])[0]["vectors"]
    assert near(parts.vectors, np.stack([tokens[:-1].mean(0), tokens[-1]]))


# --- folders


def saved(folder, small_tokenizer, model):
    save_model_folder(model, small_tokenizer, folder)
    return folder


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_a_model_for_any_task_gives_the_vectors_of_its_encoder(encoder, oracle, small_tokenizer, tmp_path, name):
    task = Classification(["a", "b", "c"]) if name == "classification" else Tagging(["O", "B-x", "I-x"])
    folder = saved(tmp_path / "m", small_tokenizer, task.build_model(FinetuneSettings(model=str(encoder)), 1))
    Facts(("note",), 48, "head", name).write(folder)
    before = torch.get_rng_state()
    embedder = Embedder(folder, sequence_length=LENGTH)
    assert torch.equal(torch.get_rng_state(), before) and embedder.text_columns == ("note",)
    assert near(embedder.embed(TEXTS), oracle.vectors(TEXTS))


@pytest.mark.parametrize("kind", ["BertModel", "BertForQuestionAnswering", "BertForMultipleChoice", "BertForMaskedLM"])
def test_folders_of_transformers_are_read(encoder, tmp_path, kind):
    torch.manual_seed(3)
    config = transformers.BertConfig.from_pretrained(encoder, num_labels=2)
    getattr(transformers, kind)(config).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.model_max_length = LENGTH
    tokenizer.save_pretrained(tmp_path)
    embedder = Embedder(tmp_path)
    assert embedder.sequence_length == LENGTH and near(embedder.embed(TEXTS), Oracle(tmp_path).vectors(TEXTS))


@pytest.mark.parametrize("layer", [-1, 1])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_a_saved_folder_says_how_its_vectors_are_made(encoder, tmp_path, pooling, layer):
    embedder = Embedder(encoder, "cpu", pooling=pooling, layer=layer, normalize=True, sequence_length=LENGTH)
    embedder.save(tmp_path / "search")
    again = Embedder(tmp_path / "search", "cpu")
    assert (again.pooling, again.normalize, again.sequence_length) == (pooling, True, LENGTH)
    assert near(again.embed(TEXTS), embedder.embed(TEXTS), 1e-7)
    assert again.model.config.num_hidden_layers == embedder.layer
    theirs = AutoModel.from_pretrained(tmp_path / "search")
    assert theirs.config.num_hidden_layers == embedder.layer
    # What was asked for here goes before what the folder says.
    assert Embedder(tmp_path / "search", pooling="cls", sequence_length=5).pooling == "cls"


def test_a_saved_folder_is_whole_or_not_there(encoder, tmp_path, monkeypatch):
    def full(self, folder, hidden_size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SentenceModel, "write", full)
    with pytest.raises(Exception, match="the disk of .* is full"):
        Embedder(encoder).save(tmp_path / "search")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("options", "sentence"), [
    ({"layer": 0}, "no model folder has no layers: save one with --layer 1 or more"),
    ({"long_text": "windows"}, "sentence-transformers reads the beginning of a long text: leave --long-text out"),
])  # fmt: skip
def test_what_no_folder_can_say_is_not_saved(encoder, tmp_path, options, sentence):
    with pytest.raises(FinetuneError) as error:
        Embedder(encoder, **options).save(tmp_path / "search")
    assert str(error.value) == sentence and not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_not_written_over(encoder, tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(FinetuneError, match="is there already"):
        Embedder(encoder).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


# --- mistakes


@pytest.mark.parametrize(("options", "sentence"), [
    ({"layer": 3}, "--layer 3 is not there: the layers of {} are 1 to 2, 0 stands for the embeddings before them, -1 "
                   "for the last"),
    ({"layer": -4}, "--layer -4 is not there: the layers of {} are 1 to 2, 0 stands for the embeddings before them, -1 "
                    "for the last"),
    ({"sequence_length": 49}, "--sequence-length 49 is not between 3 and 48, the most tokens that {} reads"),
    ({"sequence_length": 2}, "--sequence-length 2 is not between 3 and 48, the most tokens that {} reads"),
    ({"pooling": "sum"}, "pooling 'sum' is not known: give one of auto, mean, cls, max"),
    ({"long_text": "head-tail"}, "long_text 'head-tail' is not known: give one of head, windows"),
    ({"layer": "last"}, "layer 'last' is not a whole number: give one"),
    ({"sequence_length": 16.0}, "sequence_length 16.0 is not a whole number: give one"),
])  # fmt: skip
def test_what_is_not_there_is_one_sentence(encoder, options, sentence):
    with pytest.raises(FinetuneError) as error:
        Embedder(encoder, **options)
    assert str(error.value) == sentence.format(encoder)


def test_numbers_of_numpy_are_numbers(encoder, tmp_path):
    embedder = Embedder(encoder, layer=np.int64(1), sequence_length=np.int64(LENGTH))
    embedder.save(tmp_path / "saved")
    assert np.array_equal(embedder.embed(TEXTS), Embedder(tmp_path / "saved").embed(TEXTS))


TABLE = (
    'a table was given where texts should be: give one of its columns, as table["text"], or for pairs '
    'zip(table["text"], table["text_pair"])'
)


@pytest.mark.parametrize(("texts", "sentence"), [
    ("heart", "a single text was given where texts should be: put it into a list"),
    ({"text": "heart"}, "a row was given where texts should be: give its text in a list"),
    (DataFrame({"text": ["heart"]}), TABLE),
    (["heart", 7], "text 2 is a number: give a text"),
    ([("a", "b")], "text 1 is a tuple: give one text, for a vector is of a single one"),
    (["heart", " \n"], "text 2 is empty: leave it out"),
    (["heart", "\u00ad\u200b"], "text 2 is empty: leave it out"),
])  # fmt: skip
def test_what_is_no_text_is_one_sentence(encoder, texts, sentence):
    for ask in ("embed", "embed_words", "embed_tokens"):
        with pytest.raises(FinetuneError) as error:
            getattr(Embedder(encoder), ask)(texts)
        assert str(error.value) == sentence


def test_a_folder_without_a_tokenizer_is_one_sentence(encoder, tmp_path):
    BertModel.from_pretrained(encoder).save_pretrained(tmp_path)
    with pytest.raises(Exception, match=str(tmp_path)) as error:
        Embedder(tmp_path)
    assert "tokenizer" in str(error.value) or "vocab" in str(error.value)


MODULES = [("", "Transformer"), ("1_Pooling", "Pooling")]


def modules(*entries):
    return json.dumps([{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in entries])


@pytest.mark.parametrize(("file", "content", "sentence"), [
    ("modules.json", "{", "{}/modules.json is damaged"),
    ("modules.json", "[3]", "{}/modules.json is damaged"),
    ("modules.json", "[]", "{}/modules.json is damaged"),
    ("modules.json", modules(MODULES[0]), "{}/modules.json does not say how token vectors become one of a text"),
    ("modules.json", modules(*MODULES[::-1]), "{}/modules.json is damaged"),
    ("modules.json", modules(*MODULES, ("2_Dense", "Dense")), "{} makes its vectors with Dense too, which only"),
    ("modules.json", modules(("../other", "Transformer"), MODULES[1]), "names a folder outside of its own"),
    ("modules.json", modules(("a\0b", "Transformer"), MODULES[1]), "{}/modules.json is damaged"),
    ("modules.json", modules(("a" * 5000, "Transformer"), MODULES[1]), "{}/modules.json is damaged"),
    ("1_Pooling/config.json", "[]", "{}/1_Pooling/config.json is damaged"),
    ("1_Pooling/config.json", '{"pooling_mode_lasttoken": true}', "{} pools by lasttoken, not by one of mean, cls"),
    ("1_Pooling/config.json", '{"pooling_mode": ["cls", "max"]}', "{} pools by cls, max, not by one of"),
    ("sentence_bert_config.json", '{"max_seq_length": "long"}', "{}/sentence_bert_config.json is damaged"),
    ("config_sentence_transformers.json", '{"prompts": {"query": "find: "}, "default_prompt_name": "query"}',
     "{} puts a prompt before every text"),
    ("config_sentence_transformers.json", '{"truncate_dim": 16}', "{} takes the first 16 numbers of its vectors alone"),
    ("sentence_bert_config.json", '{"processing_kwargs": {"text": {"max_length": 8}}}',
     "{} gives its tokenizer settings of its own (processing_kwargs of sentence_bert_config.json)"),
    ("2_Normalize/config.json", '{"module_input_name": "token_embeddings"}', "{} scales other vectors than those of"),
])  # fmt: skip
def test_what_a_folder_says_amiss_is_one_sentence(tmp_path, file, content, sentence):
    SentenceModel(normalize=True).write(tmp_path, 32)
    assert SentenceModel.read(tmp_path) == SentenceModel(normalize=True)
    (tmp_path / file).write_text(content)
    with pytest.raises(FinetuneError) as error:
        SentenceModel.read(tmp_path)
    assert sentence.format(tmp_path) in str(error.value)


@pytest.mark.parametrize(("file", "content"), [
    ("config_sentence_transformers.json", '{"truncate_dim": null, "prompts": {}}'),
    ("sentence_bert_config.json", '{"processing_kwargs": {"text": {}}}'),
    ("2_Normalize/config.json", '{"module_input_name": "sentence_embedding", "module_output_name": null}'),
])  # fmt: skip
def test_settings_that_change_nothing_are_passed_over(tmp_path, file, content):
    SentenceModel(normalize=True).write(tmp_path, 32)
    (tmp_path / file).write_text(content)
    assert SentenceModel.read(tmp_path) == SentenceModel(normalize=True)


def test_the_name_of_a_prompt_that_is_no_text_names_none(tmp_path):
    SentenceModel().write(tmp_path, 32)
    prompts = {"prompts": {"query": "find: "}, "default_prompt_name": []}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert SentenceModel.read(tmp_path) == SentenceModel()


def test_a_bert_in_a_folder_of_its_own_is_found(encoder, tmp_path):
    Embedder(encoder).save(tmp_path / "search")
    folder = tmp_path / "search"
    (folder / "0_Transformer").mkdir()
    for path in [path for path in folder.iterdir() if path.is_file() and path.name != "modules.json"]:
        path.rename(folder / "0_Transformer" / path.name)
    (folder / "modules.json").write_text(modules(("0_Transformer", "Transformer"), MODULES[1]))
    assert (Embedder(folder, "cpu").embed(TEXTS) == Embedder(encoder, "cpu").embed(TEXTS)).all()


def test_an_example_of_a_row_is_its_text():
    columns = Columns(("text",), None)
    assert Texts().example("a:1", {"text": "heart", "n": 1}, columns) == Example("a:1", "heart")
    with pytest.raises(ValueError, match='has an empty "text"'):
        Texts().example("a:1", {"text": " "}, columns)


def test_a_model_reads_no_more_than_it_has_places_for(encoder, tmp_path):
    """A model reads no more than it has places for, whatever its folder says."""
    folder = tmp_path / "model"
    shutil.copytree(encoder, folder)
    for said in (10**30, 100, 40):
        config = json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": said}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        embedder = Embedder(folder)
        assert embedder.sequence_length == min(said, 48) and np.isfinite(embedder.embed(["heart " * 200])).all()


def test_vectors_of_words_and_tokens_are_scaled_too(encoder):
    embedder = Embedder(encoder, normalize=True)
    for (found,) in (embedder.embed_words(["heart rates was"]), embedder.embed_tokens(["heart rates was"])):
        assert np.linalg.norm(found["vectors"], axis=1) == pytest.approx(1, abs=1e-5)
