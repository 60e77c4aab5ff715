"""A BERT as a DistilBERT: transformers computes the same scores with it."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, DistilBertForMaskedLM, pipeline

from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from finetune.run import main as finetune
from model import BertConfig, BertForMaskedLM, BertForPreTraining, BertForSequenceClassification
from model.families import BERT, FAMILIES
from pretrain.distilbert import main
from pretrain.engine.checkpoint import save_model_folder
from pretrain.fill_mask import MaskFiller
from pretrain.fill_mask import main as fill_mask

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.fixture
def save(small_tokenizer, tmp_path):
    """(class, changes of the config) -> a folder of it, whose weights are large enough to matter."""

    def write(kind=BertForPreTraining, **changes):
        torch.manual_seed(0)
        sizes = {"vocab_size": small_tokenizer.vocab_size, "max_position_embeddings": 24, "initializer_range": 0.3}
        save_model_folder(kind(BertConfig(**SIZES | sizes | changes)), small_tokenizer, tmp_path / "bert")
        return tmp_path / "bert"

    return write


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_single_texts_have_equal_logits(activation, save, tmp_path):
    folder = save(hidden_act=activation)
    assert main([f"--model={folder}", f"--out={tmp_path / 'distilbert'}"]) == 0
    theirs, facts = DistilBertForMaskedLM.from_pretrained(tmp_path / "distilbert", output_loading_info=True)
    assert not facts["unexpected_keys"] and not facts["mismatched_keys"]
    assert set(facts["missing_keys"]) <= {"vocab_projector.weight"}, "tied to the word embedding"
    ids = torch.randint(theirs.config.vocab_size, (4, 24))
    mask = (torch.arange(24) < torch.tensor([[24], [9], [1], [17]])).long()
    with torch.no_grad():
        ours = BertForMaskedLM.from_pretrained(folder)(ids, attention_mask=mask).logits
        found = theirs.eval()(ids, attention_mask=mask).logits
    torch.testing.assert_close(found[mask > 0], ours[mask > 0], rtol=1e-4, atol=1e-4)
    assert ours.abs().max() > 1, "scores of nothing would be equal too"


def test_tokenizer_and_pipeline_of_transformers_work_with_it(save, tmp_path):
    folder, text = save(), "the heart [MASK] was stable"
    assert main([f"--model={folder}", f"--out={tmp_path / 'distilbert'}"]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "distilbert")
    assert "token_type_ids" not in tokenizer(text)
    assert tokenizer(text)["input_ids"] == AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "distilbert")) is DistilBertForMaskedLM
    expected = MaskFiller(folder)([text], top_k=3)[0][0]
    found = pipeline("fill-mask", model=str(tmp_path / "distilbert"), top_k=3)(text)
    assert [row["token_str"] for row in found] == [word for word, _ in expected]
    assert [row["score"] for row in found] == pytest.approx([p for _, p in expected], abs=1e-4)


def test_it_is_fine_tuned_and_asked_for_no_words(save, tmp_path, capsys):
    folder = tmp_path / "distilbert"
    assert main([f"--model={save()}", f"--out={folder}"]) == 0
    assert "neither pooler nor NSP head" in capsys.readouterr().out
    assert fill_mask([f"--model={folder}", "the [MASK]"]) == 2
    assert "distilbert" in capsys.readouterr().err
    rows = [{"text": f"the heart {number}", "label": "ab"[number % 2]} for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"--model={folder}", f"--train={tmp_path}/rows.jsonl", f"--out={tmp_path}/run", "--budget=2steps"]
    assert finetune([*given, "--seeds=1", "--evaluations=1", "--device=cpu"]) == 0
    assert json.loads((tmp_path / "run/final/config.json").read_text())["model_type"] == "distilbert"


@pytest.mark.parametrize(("kind", "changes", "words"), [
    (BertForSequenceClassification, {}, "has not learned to fill masks"),
    (BertForPreTraining, {"layer_norm_eps": 1e-5}, "has layer_norm_eps 1e-05"),
])  # fmt: skip
def test_what_distilbert_cannot_be_is_refused(kind, changes, words, save, tmp_path, capsys):
    assert main([f"--model={save(kind, **changes)}", f"--out={tmp_path / 'distilbert'}"]) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1 and not (tmp_path / "distilbert").exists()


def test_a_tokenizer_of_more_entries_is_refused(save, tmp_path, capsys):
    folder = save()
    WordPieceTokenizer.load(folder).extended(["xyzzyx"]).save(folder, 64)
    assert main([f"--model={folder}", f"--out={tmp_path / 'distilbert'}"]) == 2
    assert "use the tokenizer of this model" in capsys.readouterr().err and not (tmp_path / "distilbert").exists()


def test_another_family_is_refused(save, tmp_path, capsys, monkeypatch):
    folder = save()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "another"}))
    monkeypatch.setitem(FAMILIES, "another", replace(BERT, config=type("Another", (BertConfig,), {})))
    assert main([f"--model={folder}", f"--out={tmp_path / 'distilbert'}"]) == 2
    assert "another family than BERT" in capsys.readouterr().err


def test_a_folder_that_is_there_stays_as_it_is(save, tmp_path, capsys):
    (tmp_path / "distilbert").mkdir()
    assert main([f"--model={save()}", f"--out={tmp_path / 'distilbert'}"]) == 2
    assert "is there already" in capsys.readouterr().err and not list((tmp_path / "distilbert").iterdir())
