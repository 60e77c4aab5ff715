"""Model cards: what hubs read is valid, results are shown next to baselines, three lines use the model."""

import json
import re
from pathlib import Path

import pytest
import yaml

from finetune.metrics import spread
from finetune.model_card import model_card
from finetune.resolve import model_config
from finetune.run import main as finetune
from finetune.settings import FinetuneSettings
from finetune.tasks.classification import Classification
from pretrain.run import main as pretrain

WORDS = "the heart rate of a patient was measured before and after treatment with drug level change rise".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A pretraining and a fine-tuning on made-up Norwegian, whose code YAML takes for "false"."""
    folder = tmp_path_factory.mktemp("cards")
    lines = [" ".join(WORDS[n % 7 : n % 7 + 8]) + f" {n} ." for n in range(600)]
    (folder / "notes.txt").write_text("\n\n".join("\n".join(lines[start : start + 10]) for start in range(0, 600, 10)))
    rows = [{"text": lines[n], "label": f"class {n % 2}"} for n in range(60)]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = ["--device=cpu", "--batch-size=8", "--evaluations=1"]
    given = [f"--corpus={folder}/notes.txt", "--language=no", "--preset=tiny", "--sequence-length=32", "--workers=1"]
    assert pretrain([*given, *small, "--budget=3steps", f"--out={folder}/run"]) == 0
    given = [f"--model={folder}/run/final", f"--train={folder}/labels.jsonl", f"--test={folder}/labels.jsonl"]
    assert finetune([*given, *small, "--budget=3steps", f"--out={folder}/labels"]) == 0
    return folder


def card(folder: Path) -> tuple[dict, str]:
    return parts_of((folder / "final" / "README.md").read_text())


def parts_of(page: str) -> tuple[dict, str]:
    _, metadata, text = page.split("---\n", 2)
    return yaml.safe_load(metadata), text


@pytest.mark.parametrize("name", ["run", "labels"])
def test_the_hub_reads_the_metadata(folder, name):
    hub = pytest.importorskip("huggingface_hub")
    found = hub.ModelCard((folder / name / "final" / "README.md").read_text()).data
    metadata, _ = card(folder / name)
    assert found.to_dict()["library_name"] == "transformers" and found.pipeline_tag == metadata["pipeline_tag"]
    results = json.loads((folder / name / "results.json").read_text())
    values = {result.metric_type: result.metric_value for result in found.eval_results}
    if name == "run":
        assert found.language == "no"
        assert values["loss"] == pytest.approx(results["validation"]["mlm_loss"], abs=1e-4)
        assert values["accuracy"] == pytest.approx(results["validation"]["mlm_accuracy"], abs=1e-4)
    else:
        assert values["accuracy"] == pytest.approx(results["test"]["accuracy"]["mean"], abs=1e-4)
        assert values["macro_f1"] == pytest.approx(results["test"]["macro_f1"]["mean"], abs=1e-4)


@pytest.mark.parametrize(("name", "baseline"), [("run", "word frequencies"), ("labels", "most frequent class")])
def test_the_page_has_results_beside_baselines_settings_and_limits(folder, name, baseline):
    metadata, text = card(folder / name)
    assert baseline in text and "| budget | 3steps |" in text and "| batch_size | 8 |" in text and "## Limits" in text
    if name == "run":
        assert text.lstrip().startswith("# A BERT of its own domain\n") and "Pretrained from scratch with" in text
        assert metadata["tags"] == ["bert", "fill-mask", "domain-bert"]
        assert metadata["model-index"][0]["name"] == "a BERT of its own domain"
        assert "| min_documents | 1 |" in text and "| group_column | none |" in text


@pytest.mark.parametrize("long_text", ["head", "head-tail", "windows"])
def test_the_page_is_about_the_seed_that_is_kept_and_its_long_texts(folder, long_text):
    results = json.loads((folder / "labels" / "results.json").read_text()) | {"best_seed": 8}
    results["test"] = {name: spread([0.25, 0.75]) for name in results["test"]}
    settings = FinetuneSettings(seed=7, seeds=2, long_text=long_text, sequence_length=32)
    task, config = Classification(results["labels"]), model_config(str(folder / "labels" / "final"))
    metadata, text = parts_of(model_card(task, config, results, ("text",), settings))
    assert [metric["value"] for metric in metadata["model-index"][0]["results"][0]["metrics"]] == [0.75, 0.75]
    assert "| accuracy | 0.750 | 0.500 ± 0.354 |" in text
    # The pipeline of transformers cuts them, as training did with `head`.
    assert ("Of long texts this reads the beginning" in text) == (long_text != "head")
    assert (f"training ({long_text})" in text) == (long_text != "head")


@pytest.mark.parametrize(("name", "answer"), [("run", "one word is"), ("labels", "class")])
def test_the_three_lines_of_the_page_use_the_model(folder, name, answer, capsys):
    _, text = card(folder / name)
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    exec(code.replace("path/to/this/folder", str(folder / name / "final")), {})
    assert answer in capsys.readouterr().out.lower()


def examples() -> list:
    """The Python on the page about using a model, but that of a web service."""
    page = (Path(__file__).parents[1] / "docs" / "using_the_model.md").read_text()
    return [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "FastAPI" not in block]


@pytest.mark.parametrize("code", examples(), ids=lambda code: code.split("\n")[0])
def test_the_code_of_the_page_on_use_runs(folder, code, tmp_path, monkeypatch):
    if "onnx" in code:
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.csv").write_text("text,label\n" + "".join(f"text {number},a\n" for number in range(6)))
    for name, model in (("notes", "run"), ("labels", "labels")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "final").symlink_to(folder / model / "final")
    found: dict = {}
    exec(code, found)
    if "vectors" in found:
        assert found["vectors"].shape == (6 if "csv" in found else 2, 128)
    if "logits" in found:
        import torch

        with torch.no_grad():
            expected = found["model"](**found["tokenizer"](["a third text"], return_tensors="pt")).logits
        assert abs(expected.numpy() - found["logits"]).max() < 1e-4
