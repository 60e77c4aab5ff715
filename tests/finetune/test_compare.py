import json
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import yaml

from finetune.compare import comparison_table, named_runs, write_comparison
from finetune.dataset import read_dataset
from finetune.metrics import combined
from finetune.run import main
from finetune.settings import FinetuneSettings
from finetune.tasks.classification import Classification
from pretrain.engine import loop
from pretrain.engine.distributed import World

NAMES = ["run", "run, not pretrained", "other", "run 2", "TF-IDF + logistic regression", "most frequent class"]


def arguments(files, out, *models, **options):
    given = {"out": out, "budget": "2epochs", "batch-size": 8, "learning-rate": 0.003, "seeds": 2}
    given |= {"precision": "fp32", "device": "cpu", **files} | options
    compare = ["--compare", *map(str, models)] if models else []
    return [*(f"--{name}={value}" for name, value in given.items()), *compare]


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def files(encoder, make_rows, tmp_path_factory):
    """The model, and texts of which one class in three is half as frequent."""
    folder = tmp_path_factory.mktemp("texts")
    found = {"model": encoder}
    for name, rows in (("train", make_rows(48)), ("validation", make_rows(12, 100)), ("test", make_rows(21, 200))):
        rows = [row for index, row in enumerate(rows) if row["label"] != "mask" or index % 2]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found[name] = path
    return found


@pytest.fixture(scope="module")
def models(encoder, tmp_path_factory):
    """What the encoder is compared with: nothing pretrained, a copy under another name, and one under the same."""
    other = tmp_path_factory.mktemp("compared")
    shutil.copytree(encoder, other / "other" / "final")
    shutil.copytree(encoder, other / "again" / "run")
    return ["scratch", other / "other" / "final", other / "again" / "run"]


@pytest.fixture(scope="module")
def compared(files, models, tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison") / "out"
    assert main(arguments(files, out, *models)) == 0
    return out


def test_every_model_stands_in_the_table_under_a_name_of_its_own(compared, files):
    found = results_of(compared)
    assert list(found["models"]) == NAMES
    assert found["reference"] == "run" and found["shown"] == "test"
    table = (compared / "comparison.md").read_text()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    differences = [row for name in NAMES[1:] for row in (f"run minus {name}", "its 95 % interval")]
    assert rows == ["test texts", *NAMES, *differences]
    accuracy = found["models"]["run"]["test"]["accuracy"]
    assert f"| run | {accuracy['mean']:.3f} ± {accuracy['std']:.3f} |" in table


def test_each_model_is_what_a_run_of_its_own_gives(compared, files, models, tmp_path):
    found = results_of(compared)["models"]
    assert main(arguments(files, tmp_path / "scratch") + ["--from-scratch"]) == 0
    alone = results_of(tmp_path / "scratch")
    for part in ("validation", "test"):
        assert found["run, not pretrained"][part] == alone[part]
        assert found["other"][part] == found["run"][part] == found["run 2"][part]
    assert found["run"]["validation"] != alone["validation"]


def test_the_table_says_where_nothing_was_learned(compared):
    """The first seed of a search does not begin again."""
    found = results_of(compared)
    for name, restarts, seeds in (("run", 0, [1]), ("other", 1, []), ("run 2", 2, [2])):
        found["models"][name] |= {"restarts": restarts, "learned_nothing": seeds}
    notes = comparison_table(Classification(["a", "b"]), found).splitlines()[-3:]
    assert notes == [
        "run learned nothing with 1 of its seeds.",
        "other learned nothing and began again at a lower rate once.",
        "run 2 learned nothing and began again at a lower rate 2 times, without success for 1 of its seeds.",
    ]


def test_the_table_has_the_rate_of_a_kept_seed_that_began_again(compared):
    found = results_of(compared)
    of_search = {"learning_rates_tried": {"0.0001": {}, "0.0003": {}}, "learning_rate_chosen": "0.0003"}
    found["models"]["run"] |= of_search | {"learning_rate": 9e-05}
    found["models"]["other"] |= of_search | {"learning_rate": 3e-04}
    rows = [line for line in comparison_table(Classification(["a", "b"]), found).splitlines() if line.startswith("| ")]
    assert rows[1].endswith("| 0.0003 (0.0001, 0.0003), then 9e-05 |")
    assert any(row.startswith("| other ") and row.endswith("| 0.0003 (0.0001, 0.0003) |") for row in rows)


def test_the_table_says_where_models_were_trained_for_other_budgets(compared):
    found = results_of(compared)
    budgets = [model["budget"] for model in found["models"].values()]
    assert len(set(budgets[: len(NAMES) - 2])) == 1 and budgets[-2:] == [None, None]
    task = Classification(["a", "b"])
    assert "trained for" not in comparison_table(task, found)
    found["models"]["other"]["budget"] = "21epochs"
    assert f"trained for run {budgets[0]}, " in (table := comparison_table(task, found)) and "other 21epochs" in table


def test_baselines_are_counted_on_the_same_texts(compared, files):
    found = results_of(compared)["models"]
    count = {name: Counter(json.loads(line)["label"] for line in open(files[name])) for name in ("train", "test")}
    assert len(set(count["train"].values())) > 1
    top = count["train"].most_common(1)[0][0]
    expected = count["test"][top] / count["test"].total()
    assert found["most frequent class"]["test"]["accuracy"] == {"mean": expected, "std": None, "seeds": [expected]}
    assert found["TF-IDF + logistic regression"]["test"]["accuracy"]["mean"] > 0.9


def test_differences_are_taken_seed_by_seed(compared):
    found = results_of(compared)
    models, differences = found["models"], found["differences"]
    assert list(differences) == NAMES[1:]
    for name, values in differences.items():
        for metric, value in values.items():
            first, other = models["run"]["test"][metric]["seeds"], models[name]["test"][metric]["seeds"]
            pairs = zip(first, other * 2 if len(other) == 1 else other, strict=True)
            assert value["seeds"] == pytest.approx([a - b for a, b in pairs])
            assert value["mean"] == pytest.approx(sum(value["seeds"]) / 2)
    assert any(differences["run, not pretrained"]["loss"]["seeds"])
    assert not any(differences["other"]["loss"]["seeds"])


@pytest.mark.parametrize("task", ["classification", "multi-label"])
def test_a_paired_difference_is_that_of_the_table(write_rows, tmp_path, task):
    """With the threshold that was decided for each model, and for each baseline."""
    draw, files = np.random.default_rng(3), {}
    for part in ("train", "validation", "test"):
        texts = [f"{part} {number} {draw.choice(['heart', 'mask'])}" for number in range(60)]
        rows = [{"text": text, "label": "usual" if number % 5 else "rare"} for number, text in enumerate(texts)]
        files[part] = write_rows(rows, f"{part}.jsonl")
    settings = FinetuneSettings(**files, task=task, operating_point="sensitivity=0.95")
    dataset, folder = read_dataset(settings), tmp_path / "run" / "seed-1"
    outputs = {
        split: draw.dirichlet([1, 1], len(rows)).astype(np.float32) for split, rows in dataset.held_out().items()
    }
    decided = dataset.task.tuned(dataset.task.targets(dataset.validation), outputs["validation"])
    (folder / "model").mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"decision": decided.decision()}))
    np.savez(folder / "probabilities.npz", **outputs)
    scores = {split: combined([decided.scores(decided.targets(rows), outputs[split])])
              for split, rows in dataset.held_out().items()}  # fmt: skip
    write_comparison(settings, tmp_path, dataset, {"run": scores}, {"run": folder.parent})
    found = results_of(tmp_path)
    assert len(found["paired"]) == 2 and found["paired"].keys() == found["differences"].keys()
    for name, of_texts in found["paired"].items():
        expected = {metric: value["mean"] for metric, value in found["differences"][name].items()}
        defined = {metric: value for metric, value in expected.items() if value is not None}
        assert {metric: value["difference"] for metric, value in of_texts.items()} == pytest.approx(defined)


def weight_files(out):
    return {path: path.stat().st_mtime_ns for path in out.glob("*/seed-*/model/model.safetensors")}


def test_the_same_command_trains_nothing_again(compared, files, models):
    before, results = weight_files(compared), results_of(compared)
    assert len(before) == 8
    assert main(arguments(files, compared, *models)) == 0
    assert weight_files(compared) == before and results_of(compared) == results


def test_differences_need_no_model_of_a_seed(compared, files, models, tmp_path):
    shutil.copytree(compared, tmp_path / "out")
    for seed in ("seed-1", "seed-2"):
        shutil.rmtree(tmp_path / "out" / "run" / seed / "model")
    assert main(arguments(files, tmp_path / "out", *models)) == 0
    assert results_of(tmp_path / "out") == results_of(compared)


def test_a_comparison_and_a_fine_tuning_do_not_share_a_folder(compared, files, models, tmp_path, capsys):
    results = results_of(compared)
    assert main(arguments(files, compared)) == 2
    assert "compare" in capsys.readouterr().err
    assert main(arguments(files, compared, "scratch")) == 2
    assert "compare" in capsys.readouterr().err
    assert results_of(compared) == results
    options = {"budget": "1steps", "seeds": 1}
    assert main(arguments(files, tmp_path / "run", **options)) == 0
    assert main(arguments(files, tmp_path / "run", "scratch", **options)) == 2
    assert "compare" in capsys.readouterr().err


HOLDER = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_folders_of_a_comparison_are_written_by_one_process(files, tmp_path, capsys, monkeypatch):
    out, few, read, codes = tmp_path / "out", {"budget": "1steps", "seeds": 1}, loop.read, []
    command = arguments(files, out, "scratch", **few)

    def refusal(folder):
        return f"error: another process is writing {folder}: wait for it, or give another --out\n"

    def meanwhile(*facts, **options):
        monkeypatch.setattr(loop, "read", read)
        codes.append(main(arguments(files, out / "run", **few)))
        read(*facts, **options)

    monkeypatch.setattr(loop, "read", meanwhile)
    assert main(command) == 0 and codes == [2]
    assert capsys.readouterr().err == refusal(out / "run")
    for folder in (out / "run", out):
        holder = [sys.executable, "-c", HOLDER, str(folder / ".lock")]
        with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "held\n"
            assert main(command) == 2
        assert capsys.readouterr().err == refusal(folder)
    assert main(command) == 0


def test_a_model_in_the_folder_above_is_called_by_its_own_name(encoder, files, tmp_path, monkeypatch):
    shutil.copytree(encoder, tmp_path / "mine" / "final")
    (tmp_path / "mine" / "below").mkdir()
    monkeypatch.chdir(tmp_path / "mine" / "below")
    given = files | {"model": "../final"}
    assert main(arguments(given, "out", "scratch", budget="1steps", seeds=1)) == 0
    assert list(results_of(tmp_path / "mine" / "below" / "out")["models"])[:2] == ["mine", "mine, not pretrained"]
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"final", "below"}


def test_models_whose_names_make_one_folder_name_keep_apart(encoder, files, tmp_path):
    for name in ("a b", "a-b"):
        shutil.copytree(encoder, tmp_path / name)
    given = arguments(files, tmp_path / "out", tmp_path / "a b", tmp_path / "a-b", budget="1steps", seeds=1)
    assert main(given) == 0
    assert len(weight_files(tmp_path / "out")) == 3 == len(results_of(tmp_path / "out")["models"]) - 2


def test_a_model_that_is_called_as_a_baseline_keeps_its_results(encoder, files, compared, tmp_path):
    shutil.copytree(encoder, tmp_path / "most frequent class" / "final")
    given = files | {"model": tmp_path / "most frequent class" / "final"}
    assert main(arguments(given, tmp_path / "out", encoder, budget="1steps", seeds=1)) == 0
    found, trained = results_of(tmp_path / "out"), results_of(tmp_path / "out" / "most-frequent-class")
    assert found["models"]["most frequent class"]["test"] == trained["test"]
    name = "most frequent class (baseline)"
    known = results_of(compared)["models"]["most frequent class"]["test"]
    assert found["models"][name]["test"] == known
    assert found["reference"] == "most frequent class" and found["paired"].keys() == found["differences"].keys()
    assert name in found["paired"] and f"| {name} |" in (tmp_path / "out" / "comparison.md").read_text()


def test_a_model_in_a_folder_called_scratch_is_pretrained(encoder, files, tmp_path, monkeypatch):
    shutil.copytree(encoder, tmp_path / "scratch")
    monkeypatch.chdir(tmp_path)
    given = files | {"model": "scratch"}
    assert main(arguments(given, "out", "scratch", budget="1steps", seeds=1)) == 0
    assert list(results_of(tmp_path / "out")["models"])[:2] == ["scratch", "scratch, not pretrained"]
    begun = yaml.safe_load((tmp_path / "out" / "scratch" / "settings.yaml").read_text())
    assert begun["from_scratch"] is False


def test_without_test_texts_the_validation_texts_are_compared(files, tmp_path):
    given = {name: path for name, path in files.items() if name != "test"}
    assert main(arguments(given, tmp_path / "out", "scratch", budget="1steps", seeds=1)) == 0
    found = results_of(tmp_path / "out")
    assert found["shown"] == "validation"
    assert all(values["test"] is None for values in found["models"].values())
    assert "One seed" in (tmp_path / "out" / "comparison.md").read_text()


def test_a_comparison_goes_on_with_what_was_chosen_before(compared, encoder):
    """On another machine `auto` may mean something else: seeds of one row must not differ in that."""
    given = {"model": str(encoder), "out": str(compared), "compare": ("scratch",), "batch_size": 8, "seeds": 2}
    texts = {name: value for name, value in before(compared / "run").items() if name in ("train", "validation", "test")}
    asked = FinetuneSettings(**given, **texts, budget="2epochs", precision="fp32", device="cpu")
    assert asked.learning_rate == "auto" and named_runs(asked, World())["run"].learning_rate == 0.003


def before(folder):
    return yaml.safe_load((folder / "settings.yaml").read_text())
