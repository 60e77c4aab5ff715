"""ALBERT through all stages: pretrained, continued, opened in transformers, fine-tuned for every task, asked."""

import json
from dataclasses import fields

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models

import model
from data_prep.prepared import PreparedCorpus
from finetune.predictor import Predictor
from finetune.run import main as finetune
from finetune.settings import FinetuneSettings
from finetune.tasks.selection import task_of_folder
from finetune.training import depth_rates
from finetune.vectors.embedder import Embedder
from model.families import FAMILIES
from pretrain.fill_mask import MaskFiller
from pretrain.run import main as pretrain

transformers.utils.logging.disable_progress_bar()


def arguments(random_prepared, out, *options):
    """Those of a small run; the last of a kind wins."""
    return [
        f"--prepared={random_prepared}", f"--out={out}", "--family=albert", "--objective=mlm+sop", "--masking=ngram",
        "--preset=tiny",
        "--budget=12steps", "--batch-size=8", "--evaluations=2", "--log-every=4", "--checkpoint-every=4steps",
        "--keep-checkpoints=9", "--dropout=0.1", "--sequence-length=32", "--device=cpu", "--precision=fp32",
        "--threads=1", *options,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def finished(random_prepared, random_corpus):
    out = random_corpus.parent / "run"
    assert pretrain(arguments(random_prepared, out)) == 0
    return out


def test_the_run_leaves_results_beside_baselines_a_card_and_one_set_of_layers(finished):
    results = json.loads((finished / "results.json").read_text())["validation"]
    assert results["mlm_loss"] < results["unigram_entropy"] + 0.1
    assert 0.5 <= results["sop_majority"] < 0.75 and results["sop_loss"] > 0 and 0 < results["sop_accuracy"] < 1
    card = (finished / "final" / "README.md").read_text().replace("\n", " ")
    assert "ALBERT of 2 layers x 128 with shared weights, embeddings of 64" in card and "| SOP accuracy |" in card
    for words in ("tags: [albert, fill-mask, domain-bert]", "- name: an ALBERT of its own domain",
                  "# An ALBERT of its own domain"):  # fmt: skip
        assert words in card
    config = json.loads((finished / "final" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("albert", ["AlbertForPreTraining"])
    stored = load_file(finished / "final" / "model.safetensors")
    assert {name.split(".")[3] for name in stored if "albert_layers" in name} == {"0"}
    assert stored["albert.embeddings.word_embeddings.weight"].shape[1] == 64
    assert sum(tensor.numel() for tensor in stored.values()) == model.parameter_count(
        model.AlbertConfig.from_dict(config)
    )


def test_an_interrupted_run_goes_on_to_the_bit(finished, random_prepared, stopped_at, capsys):
    stopped = stopped_at(finished, 4)
    assert pretrain(arguments(random_prepared, stopped)) == 0
    assert f"Resuming from {stopped}/checkpoints/step-00000004." in capsys.readouterr().out
    for name in ("final/model.safetensors", "checkpoints/step-00000012/model.safetensors"):
        assert (stopped / name).read_bytes() == (finished / name).read_bytes()


def test_the_folder_opens_in_transformers_and_fills_masks_alike(finished):
    folder, text = str(finished / "final"), "the heart [MASK] of a [MASK] patient ."
    theirs, info = transformers.AutoModelForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert type(theirs) is transformers.AlbertForPreTraining
    assert not (info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"])
    tokenizer, ours = transformers.AutoTokenizer.from_pretrained(folder), MaskFiller(folder)
    assert type(ours.model) is model.AlbertForMaskedLM
    encoded = tokenizer([text, "Patient was measured ."], return_tensors="pt", padding=True)
    assert encoded["input_ids"][0].tolist() == ours._encode(text)
    with torch.no_grad():
        words = theirs.eval()(**encoded).prediction_logits
        real = encoded["attention_mask"].bool()
        torch.testing.assert_close(ours.model(**encoded).logits[real], words[real], rtol=1e-4, atol=1e-5)
    expected = transformers.pipeline("fill-mask", model=folder, top_k=3)(text)
    for mask, found in zip(expected, ours([text], top_k=3)[0], strict=True):
        assert [(w["token_str"], round(w["score"], 4)) for w in mask] == [(w, round(p, 4)) for w, p in found]


def test_a_plan_is_made(random_prepared, tmp_path, capsys):
    assert pretrain(arguments(random_prepared, tmp_path / "run", "--preset=mini", "--dry-run")) == 0
    printed = capsys.readouterr().out
    assert "on a GPU" in printed and "SOP accuracy" in printed and not (tmp_path / "run").exists()
    size = PreparedCorpus(random_prepared).tokenizer.vocab_size
    config = model.AlbertConfig.from_preset("mini", size, max_position_embeddings=32)
    assert f" {model.parameter_count(config):,} parameters" in printed


def test_it_is_continued_with_new_entries_and_longer_sequences(finished, random_corpus, tmp_path, capsys):
    text = random_corpus.read_text().replace("treatment", "electrocardiogram")
    (tmp_path / "more.txt").write_text(text)
    given = [f"--corpus={tmp_path}/more.txt", f"--init-from={finished}/final", "--extend-vocab=1", "--workers=1"]
    kept = [o for o in arguments("x", tmp_path / "run", "--budget=2steps", "--evaluations=1", "--sequence-length=48")
            if not o.startswith(("--prepared", "--family", "--preset"))]  # fmt: skip
    assert pretrain([*given, *kept]) == 0
    assert "gets positions for 48" in capsys.readouterr().out
    assert "from an existing ALBERT" in (tmp_path / "run" / "final" / "README.md").read_text()
    before, after = (load_file(out / "final" / "model.safetensors") for out in (finished, tmp_path / "run"))
    words, positions = (f"albert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position"))
    assert after[words].shape == (before[words].shape[0] + 1, 64) and after[positions].shape == (48, 64)
    grown = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "run" / "final")
    assert grown.config.vocab_size == len(after["predictions.bias"]) == len(after[words])


def test_next_sentences_are_learned_with_an_albert_too(random_prepared, tmp_path):
    assert pretrain(arguments(random_prepared, tmp_path / "run", "--objective=mlm+nsp", "--budget=2steps")) == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["validation"]["nsp_accuracy"] is not None


def test_a_family_beside_a_model_to_continue_is_refused(finished, random_prepared, tmp_path, capsys):
    assert pretrain(arguments(random_prepared, tmp_path / "run", f"--init-from={finished}/final")) == 2
    assert "--preset cannot be combined with --init-from" in capsys.readouterr().err


def test_one_with_another_tokenizer_is_not_pretrained_and_its_weights_open(random_corpus, tmp_path, capsys):
    folder = tmp_path / "albert-base-v2"
    sizes = {"vocab_size": 40, "embedding_size": 8, "hidden_size": 16, "num_attention_heads": 2}
    config = transformers.AlbertConfig(**sizes, intermediate_size=32)
    transformers.AlbertForPreTraining(config).save_pretrained(folder)
    unigram = models.Unigram([("<pad>", 0.0), ("<unk>", 0.0), ("▁a", -1.0), ("b", -2.0)], unk_id=1)
    Tokenizer(unigram).save(str(folder / "tokenizer.json"))
    given = [
        f"--corpus={random_corpus}",
        f"--init-from={folder}",
        f"--out={tmp_path}/run",
        "--workers=1",
        "--device=cpu",
    ]
    assert pretrain(given) == 2
    said = capsys.readouterr().err
    assert "is a model of the type 'albert'" in said and "but not pretrained" in said and "Traceback" not in said
    assert not (tmp_path / "run" / "settings.yaml").exists()
    assert model.AlbertForPreTraining.from_pretrained(folder).newly_initialised == ()


def rows_of(task, count):
    """Rows that a task learns from."""
    for number in range(count):
        kind = number % 3
        text = f"the {['heart', 'patient', 'drug'][kind]} {number}"
        yield {
            "classification": {"text": text, "label": ["a", "b", "c"][kind]},
            "multi-label": {"text": text, "label": [["a"], ["a", "b"], []][kind]},
            "regression": {"text": text, "label": 0.5 + kind},
            "tagging": {"tokens": text.split(), "tags": ["O", ["B-x", "O", "O"][kind], "O"]},
            "multiple-choice": {"text": text, "choices": [f"rise {number}", "level"], "label": number % 2},
            "question-answering": {
                "question": f"what {number} ?",
                "context": text,
                "answers": [{"text": text.split()[1], "answer_start": 4}],
            },
        }[task]


TASKS = {
    "classification": model.AlbertForSequenceClassification,
    "multi-label": model.AlbertForSequenceClassification,
    "regression": model.AlbertForSequenceClassification,
    "tagging": model.AlbertForTokenClassification,
    "multiple-choice": model.AlbertForMultipleChoice,
    "question-answering": model.AlbertForQuestionAnswering,
}
# Of a class that another task has too, or of a head like those of others.
ALIKE = ("multi-label", "regression", "multiple-choice")
OPTIONS = {
    "classification": ["--mlm-weight=0.5", "--layer-decay=0.5"],
    "multi-label": ["--hidden-layers=1"],
    "regression": ["--freeze-encoder"],
    "tagging": ["--from-scratch", "--mlm-weight=0.5"],
}


@pytest.mark.parametrize(
    "task", [pytest.param(name, marks=[pytest.mark.slow] if name in ALIKE else []) for name in TASKS]
)
def test_it_is_fine_tuned_for_every_task_and_asked(task, finished, tmp_path):
    rows = list(rows_of(task, 48))
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"--model={finished}/final", f"--train={tmp_path}/train.jsonl", f"--task={task}", f"--out={tmp_path}/run"]
    given += ["--budget=3steps", "--batch-size=8", "--seeds=1", "--evaluations=1", "--device=cpu", "--precision=fp32"]
    assert finetune([*given, "--threads=1", *OPTIONS.get(task, [])]) == 0
    folder = tmp_path / "run" / "final"
    predictor = Predictor(folder, device="cpu")
    assert type(predictor.model) is TASKS[task]
    asked = {
        "tagging": [rows[0]["tokens"]] if task == "tagging" else [],
        "multiple-choice": [rows[0]],
        "question-answering": [("what ?", "the heart 7")],
    }.get(task, ["the heart 7"])
    assert len(predictor.predict(asked)) == 1
    if "--hidden-layers=1" not in OPTIONS.get(task, []):
        kind = getattr(transformers, TASKS[task].__name__)
        _, info = kind.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["mismatched_keys"]
        (folder / "finetune.json").unlink()
        # As a folder of transformers.
        assert task_of_folder(folder).name == task


def test_layers_that_share_their_weights_are_learned_at_one_rate_below_the_head():
    config = model.AlbertConfig.from_preset("mini", 100)
    with torch.device("meta"):
        classifier = model.AlbertForSequenceClassification(config)
    rates = depth_rates(FinetuneSettings(layer_decay=0.5), classifier)
    found = {name: rates.share(rates.group(name), 1.0) for name, _ in classifier.named_parameters()}
    for name, share in found.items():
        assert share == (0.5 if ".layers." in name else 0.25 if ".embeddings." in name else 1.0), name


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_vectors_are_those_of_the_layer(layer, finished, tmp_path):
    embedder = Embedder(finished / "final", device="cpu", layer=layer)
    tokenizer, text = embedder.tokenizer, "the heart rate was measured ."
    ids = torch.tensor([[tokenizer.cls_id, *tokenizer.encode([text])[0], tokenizer.sep_id]])
    theirs = transformers.AlbertModel.from_pretrained(finished / "final")
    with torch.no_grad():
        states = theirs(ids, output_hidden_states=True).hidden_states[layer]
    assert np.abs(embedder.embed([text]) - states.mean(1).numpy()).max() < 1e-5
    if layer == 1:
        embedder.save(tmp_path / "search")
        assert json.loads((tmp_path / "search" / "config.json").read_text())["num_hidden_layers"] == 1
        assert np.abs(Embedder(tmp_path / "search", device="cpu").embed([text]) - states.mean(1).numpy()).max() < 1e-5


def test_vectors_are_learned_and_are_those_of_transformers(finished, tmp_path):
    rows = [{"text_a": f"the heart {n}", "text_b": f"the {'heart' if n % 2 else 'drug'} rate", "score": n % 2}
            for n in range(48)]  # fmt: skip
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"--model={finished}/final", f"--train={tmp_path}/train.jsonl", "--task=similarity", "--budget=3steps"]
    given += [f"--out={tmp_path}/run", "--batch-size=8", "--seeds=1", "--evaluations=1", "--device=cpu", "--threads=1"]
    assert finetune([*given, "--precision=fp32"]) == 0
    folder, text = tmp_path / "run" / "final", "the heart rate"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = transformers.AlbertModel.from_pretrained(folder)(**tokenizer(text, return_tensors="pt"))[0]
    expected = torch.nn.functional.normalize(states.mean(1)).numpy()
    assert np.abs(Embedder(folder, device="cpu").embed([text]) - expected).max() < 1e-5
    (found,) = Predictor(folder, device="cpu").predict([(text, text)])
    assert found["predicted_score"] == pytest.approx(1, abs=1e-5)


def test_all_of_its_classes_are_in_the_family():
    family = FAMILIES["albert"]
    assert FAMILIES["domain-albert"] is family
    kinds = [getattr(family, each.name) for each in fields(family)]
    public = {name for name in model.__all__ if name.startswith("Albert") and name != "AlbertModel"}
    assert {kind.__name__ for kind in kinds if isinstance(kind, type)} == public | {"AlbertForVectors"}
