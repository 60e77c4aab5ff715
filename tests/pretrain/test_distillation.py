"""A student beside its teacher: gradients against transformers and torch, runs, and what is refused."""

import json
import shutil

import pytest
import torch
import yaml
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import nn
from transformers import BertForPreTraining as TheirBert

from data_prep.examples.packing import ShardExamples
from data_prep.settings import ExampleSettings
from finetune.run import main as finetune
from model import BertConfig, BertForPreTraining, BertForSequenceClassification
from model.families import FAMILIES, read_config
from pretrain.batches import BatchMaker, ExampleStream
from pretrain.engine.batches import Batches, Position
from pretrain.engine.checkpoint import save_model_folder
from pretrain.engine.distributed import World
from pretrain.engine.settings import LoopSettings
from pretrain.engine.step import Learner, add_counts, add_gradients
from pretrain.fill_mask import main as fill_mask
from pretrain.objective import PretrainingObjective
from pretrain.objectives import make_objective
from pretrain.report import draw_curves
from pretrain.resolve import resolve
from pretrain.run import main
from pretrain.settings import PretrainSettings

LENGTH, WEIGHTS = 48, (5.0, 2.0, 1.0)


def save(folder, tokenizer, kind=BertForPreTraining, seed=0, rows=0, **changes):
    """A folder of 4 layers whose weights are large enough to matter."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"vocab_size": tokenizer.vocab_size + rows, "max_position_embeddings": LENGTH, "initializer_range": 0.2}
    save_model_folder(kind(BertConfig(**sizes | changes)), tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def teacher(prepared, tmp_path_factory):
    return save(tmp_path_factory.mktemp("teacher") / "bert", prepared.tokenizer)


def settings_of(prepared, teacher, **changes):
    given = {"prepared": str(prepared.folder), "teacher": teacher and str(teacher), "budget": "9steps", "batch_size": 8}
    given |= {"device": "cpu", "precision": "fp32", "examples": ExampleSettings(sequence_length=LENGTH)}
    settings = PretrainSettings(**given | changes)
    return resolve(settings, read_config(settings.starts_from))


def student_of(teacher):
    """Half of the teacher, in training mode, without dropout; not where the teacher has it any more."""
    no_dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    model = BertForPreTraining.from_pretrained(teacher, **no_dropout).of_layers([0, 3])
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.train()


def batches_of(prepared, tokens=10**9, size=12):
    maker = BatchMaker(prepared.train, prepared.tokenizer, "token", tokens)
    stream = ExampleStream(ShardExamples.of(prepared, "train", LENGTH, 1))
    batches = Batches(stream, maker, size, Position(), World())
    batches.draw()
    return batches


def plain_losses(student, teacher, batch, every):
    """The mean losses by transformers and torch; the whole of Sanh et al. (2019)."""
    starts = batch.sequence_starts.tolist()
    targets = torch.full_like(batch.input_ids, -100)
    targets[batch.masked_positions] = batch.masked_targets

    def pad(values, fill=0):
        rows = [values[a:b] for a, b in zip(starts, starts[1:], strict=False)]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)

    given = {"input_ids": pad(batch.input_ids), "token_type_ids": pad(batch.token_type_ids),
             "attention_mask": pad(torch.ones_like(batch.input_ids)), "output_hidden_states": True}  # fmt: skip
    labels = pad(targets, -100)
    chosen = given["attention_mask"] > 0 if every else labels >= 0
    ours = student(**given)
    with torch.no_grad():
        theirs = teacher(**given)
    soft = nn.KLDivLoss(reduction="batchmean")(
        (ours.prediction_logits[chosen] / 2).log_softmax(-1), (theirs.prediction_logits[chosen] / 2).softmax(-1)
    )
    states, of_teacher = ours.hidden_states[-1][chosen], theirs.hidden_states[-1][chosen]
    return {
        "mlm": 2 * nn.CrossEntropyLoss()(ours.prediction_logits.flatten(0, 1), labels.flatten()),
        "nsp": nn.CrossEntropyLoss()(ours.seq_relationship_logits, batch.pair_targets),
        "soft": 5 * soft * 4,
        "cosine": nn.CosineEmbeddingLoss()(states, of_teacher, torch.ones(len(states))),
    }


@pytest.mark.parametrize("weights", [WEIGHTS, (0.0, 2.0, 1.0), (5.0, 2.0, 0.0)])
@pytest.mark.parametrize("where", ["all", "masked"])
def test_losses_and_gradients_are_those_of_plain_torch(where, weights, prepared, teacher, tmp_path):
    changes = {"teacher_positions": where, "teacher_weights": weights}
    objective = make_objective(settings_of(prepared, teacher, **changes), prepared)
    model, (batch,) = student_of(teacher), batches_of(prepared).micro_batches()
    counts, sums = objective.counts(batch), objective.loss_sums(model, batch)
    means = {name: value / counts[name] for name, value in sums.items()}
    sum(means.values()).backward()
    save_model_folder(model, prepared.tokenizer, tmp_path / "student")
    theirs = TheirBert.from_pretrained(tmp_path / "student").train()
    assert theirs.config.hidden_dropout_prob == 0
    expected = plain_losses(theirs, TheirBert.from_pretrained(teacher).eval(), batch, where == "all")
    off = {name for name, weight in zip(("soft", "mlm", "cosine"), weights, strict=True) if not weight}
    expected = {name: value for name, value in expected.items() if name not in off}
    sum(expected.values()).backward()
    assert {name: value.item() for name, value in means.items()} == pytest.approx(
        {name: value.item() for name, value in expected.items()}, rel=1e-4
    )
    gradients = dict(theirs.named_parameters())
    largest = max(float(p.grad.abs().max()) for p in gradients.values())
    for name, parameter in model.named_parameters():
        rows = parameter.grad.chunk(len(model.names.of(f"{name}")))
        for one, found in zip(model.names.of(name), rows, strict=True):
            torch.testing.assert_close(found, gradients[one].grad, rtol=1e-3, atol=1e-5 * largest, msg=one)


def test_pairs_keep_their_weight_and_their_rate(prepared, teacher):
    settings = settings_of(prepared, teacher, pair_weight=4.0, pair_rate=0.2, objective="mlm+nsp")
    objective, model = make_objective(settings, prepared), student_of(teacher)
    assert {part.name: part.weight for part in objective.parts} == {"mlm": 2, "nsp": 4, "soft": 5, "cosine": 1}
    assert set(objective.rates(model).shares) == {
        name for name, _ in model.named_parameters() if name.startswith(("bert.pooler", "nsp_head"))
    }


@pytest.mark.parametrize("words", [0.0, 1.0])
def test_words_that_are_not_learned_are_not_warned_of(words, prepared, teacher):
    objective = make_objective(settings_of(prepared, teacher, teacher_weights=(3.0, words, 0.5)), prepared)
    at_frequencies = {"mlm_loss": 5.0, "unigram_entropy": 5.0, "most_frequent_accuracy": 0.1}
    assert ("plateau" in objective.warnings([{"step": 9, "validation": at_frequencies}], 1.0)) == bool(words)
    assert ("masked words" in objective.learned) == bool(words)


@pytest.mark.parametrize("where", ["all", "masked"])
@pytest.mark.parametrize("soft", [0.0, 5.0])
def test_words_are_scored_only_where_something_is_learned_of_them(soft, where, prepared, teacher):
    changes = {"teacher_positions": where, "teacher_weights": (soft, 2.0, 1.0)}
    objective = make_objective(settings_of(prepared, teacher, **changes), prepared)
    model, (batch,) = student_of(teacher), batches_of(prepared).micro_batches()
    rows = {}
    for name, each in (("student", model), ("teacher", objective.teacher)):
        each.mlm_head.register_forward_hook(lambda head, given, scores, name=name: rows.update({name: len(scores)}))
    objective.loss_sums(model, batch)
    asked = batch.num_tokens if where == "all" else len(batch.masked_positions)
    expected = {"student": asked, "teacher": asked} if soft else {"student": len(batch.masked_positions)}
    assert rows == expected


def test_the_teacher_gets_no_gradient_and_has_no_dropout(prepared, teacher):
    objective = make_objective(settings_of(prepared, teacher), prepared)
    model, (batch,) = student_of(teacher), batches_of(prepared).micro_batches()
    learner = Learner(LoopSettings(optimizer="adamw", learning_rate=1e-3, precision="fp32", device="cpu"), model,
                      objective, seed=1)  # fmt: skip
    assert not [p for p in objective.teacher.parameters() if p.requires_grad] and not objective.teacher.training
    assert objective.teacher.config.hidden_dropout_prob == 0.1, "dropout would be seen"
    own = {id(p) for p in model.parameters()}
    assert {id(p) for part in learner.optimizer.parts for g in part.param_groups for p in g["params"]} <= own
    first, second = (objective.scores(model, batch) for _ in range(2))
    assert torch.equal(first.teacher_logits, second.teacher_logits) and not first.teacher_logits.requires_grad
    sum(objective.loss_sums(model, batch).values()).backward()
    assert all(p.grad is None for p in objective.teacher.parameters())


def test_a_teacher_learns_nothing_from_itself(prepared, teacher):
    objective = make_objective(settings_of(prepared, teacher), prepared)
    itself, (batch,) = BertForPreTraining.from_pretrained(teacher).eval(), batches_of(prepared).micro_batches()
    sums = {name: value.item() for name, value in objective.loss_sums(itself, batch).items()}
    assert sums["soft"] == pytest.approx(0, abs=1e-2) and sums["cosine"] == pytest.approx(0, abs=1e-3)
    found = objective.results(objective.baseline_sums(batch) | {
        name: float(value) for name, value in objective.score_sums(itself, batch).items()
    })  # fmt: skip
    assert found["soft_accuracy"] == 1 and found["soft_loss"] == pytest.approx(0, abs=1e-5)
    assert found["soft_unigram"] > 0.1
    other = objective.loss_sums(student_of(teacher), batch)
    assert other["soft"] > 100 and other["cosine"] > 10


@pytest.mark.parametrize("where", ["all", "masked"])
def test_a_step_is_the_same_in_any_micro_batches(where, prepared, teacher):
    objective, found = make_objective(settings_of(prepared, teacher, teacher_positions=where), prepared), []
    for tokens in (10**9, 100, 1):
        model, batches = student_of(teacher), batches_of(prepared, tokens)
        settings = LoopSettings(optimizer="adamw", learning_rate=1e-3, precision="fp32", device="cpu")
        learner = Learner(settings, model, objective, seed=1)
        # The last one is there for its shape alone, as of a process without an example.
        parts = [*batches.micro_batches(), batches.maker.empty_batch()]
        totals = add_counts(learner, parts, batches.num_tokens)
        losses = add_gradients(learner, parts, totals, batches.maker.empty_batch())
        gradients = {name: p.grad for name, p in model.named_parameters()}
        found.append((totals, {name: float(value) for name, value in losses.items()}, gradients))
    tokens = batches.num_tokens if where == "all" else found[0][0]["mlm"]
    assert found[0][0]["soft"] == found[0][0]["cosine"] == tokens
    for totals, losses, gradients in found[1:]:
        assert totals == found[0][0] and losses == pytest.approx(found[0][1], rel=1e-5)
        for name, gradient in found[0][2].items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


# --- runs


def arguments(prepared, teacher, out, *more):
    given = {"prepared": prepared.folder, "teacher": teacher, "out": out, "budget": "24steps", "batch-size": 8}
    given |= {"sequence-length": LENGTH, "log-every": 4, "evaluations": 2, "device": "cpu", "precision": "fp32"}
    given |= {"checkpoint-every": "8steps", "keep-checkpoints": 9}
    given |= dict(word[2:].split("=") for word in more)
    return [f"--{name}={value}" for name, value in given.items() if value != "none"]


@pytest.fixture(scope="module")
def finished(prepared, teacher, tmp_path_factory):
    out = tmp_path_factory.mktemp("student") / "run"
    assert main(arguments(prepared, teacher, out)) == 0
    return out


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_the_student_is_a_bert_of_half_the_layers_with_results_beside_their_baselines(finished, teacher, capsys):
    settings = yaml.safe_load((finished / "settings.yaml").read_text())
    assert (settings["softmax"], settings["keep_layers"]) == ("full", "half")
    theirs, facts = TheirBert.from_pretrained(finished / "final", output_loading_info=True)
    assert theirs.config.num_hidden_layers == 2 and not facts["missing_keys"] and not facts["unexpected_keys"]
    results = json.loads((finished / "results.json").read_text())
    found = results["validation"]
    assert 0 < found["soft_loss"] < found["soft_unigram"] and 0 < found["cosine_loss"] < 1
    assert found["nsp_accuracy"] and 0 < found["soft_accuracy"] < 1 and len(results["teacher"]) == 32
    losses = {"mlm_loss", "nsp_loss", "soft_loss", "cosine_loss"}
    assert all(losses < row.keys() for row in rows_of(finished) if "learning_rate" in row)
    card = (finished / "final" / "README.md").read_text()
    for words in ("layers of an existing BERT", "the probabilities of a teacher", "| teacher's words (nats) |",
                  "| teacher_weights | 5.0, 2.0, 1.0 |"):  # fmt: skip
        assert words in card
    assert fill_mask([f"--model={finished / 'final'}", "the [MASK] was high"]) == 0


def test_a_student_comes_nearer_to_its_teacher(finished):
    first, *_, last = [row["validation"] for row in rows_of(finished) if "validation" in row]
    assert last["soft_loss"] < first["soft_loss"] and last["cosine_loss"] < first["cosine_loss"]


def test_the_same_start_without_a_teacher_is_a_run_of_its_own(prepared, teacher, tmp_path, capsys):
    still = ("--budget=1steps", "--learning-rate=1e-9", "--weight-decay=0")
    alone = (f"--init-from={teacher}", "--keep-layers=half", "--teacher=none")
    for name, more in (("taught", ()), ("alone", alone)):
        assert main(arguments(prepared, teacher, tmp_path / name, *still, *more)) == 0
    said = capsys.readouterr().out
    assert said.count("the run takes over: 0, 3.") == 2
    taught, alone = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("taught", "alone"))
    whole = load_file(teacher / "model.safetensors")
    assert taught.keys() == alone.keys()
    for name in taught:
        torch.testing.assert_close(taught[name], alone[name], rtol=0, atol=1e-7)
    last = "bert.encoder.layer.{}.output.dense.weight"
    torch.testing.assert_close(taught[last.format(1)], whole[last.format(3)], rtol=0, atol=1e-7)


def test_a_model_that_has_lost_layers_learns_at_the_rate_of_a_fresh_one(prepared, teacher):
    fresh = resolve(PretrainSettings(preset="micro", optimizer="adamw", device="cpu")).learning_rate

    def rate(given=teacher, **changes):
        return settings_of(prepared, given, optimizer="adamw", **changes).learning_rate * (32 / 128) ** 0.75

    assert rate() == rate(keep_layers=(0, 2)) == pytest.approx(fresh, rel=0.05)
    start = {"init_from": str(teacher)}
    assert rate(None, **start, keep_layers="half") == rate()
    for whole in (rate(None, **start), rate(**start), rate(keep_layers="all"), rate(keep_layers=(0, 1, 2, 3))):
        assert whole == pytest.approx(fresh / 10, rel=0.05)


def test_another_student_may_be_given(prepared, teacher, tmp_path):
    student = save(tmp_path / "bert", prepared.tokenizer, seed=3, num_hidden_layers=3, hidden_size=16)
    more = (f"--init-from={student}", "--teacher-weights=3,1,0", "--objective=mlm", "--budget=2steps")
    assert main(arguments(prepared, teacher, tmp_path / "run", *more)) == 0
    assert read_config(tmp_path / "run" / "final").num_hidden_layers == 3
    found = json.loads((tmp_path / "run" / "results.json").read_text())["validation"]
    assert found["soft_loss"] > 0 and found["nsp_loss"] is None and "cosine_loss" not in found


@pytest.mark.slow
def test_numbers_choose_the_layers_of_the_student(prepared, teacher, tmp_path, capsys):
    assert main(arguments(prepared, teacher, tmp_path / "run", "--keep-layers=1,2,3", "--budget=1steps")) == 0
    assert "takes over: 1, 2, 3." in capsys.readouterr().out
    assert read_config(tmp_path / "run" / "final").num_hidden_layers == 3
    again = arguments(prepared, teacher, tmp_path / "run", "--keep-layers=1,2,3", "--budget=2steps")
    assert main(again) == 0


def test_a_plan_is_made_with_a_teacher(prepared, teacher, tmp_path, capsys):
    assert main([*arguments(prepared, teacher, tmp_path / "run"), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "not computed beside a teacher" in printed and "1 - cosine" in printed and not (tmp_path / "run").exists()


def test_losses_of_training_are_shown_without_their_weights(finished, prepared, teacher, tmp_path, monkeypatch):
    figures, rows = [], rows_of(finished)
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (figures.append(figure), path.touch()))
    draw_curves(rows, make_objective(settings_of(prepared, teacher), prepared), tmp_path / "curves.png")
    lines = [list(line.get_ydata()) for line in figures[0].axes[0].lines]
    for name in ("mlm", "nsp", "soft", "cosine"):
        told = [row[f"{name}_loss"] for row in rows if "learning_rate" in row]
        held_out = [row["validation"][f"{name}_loss"] for row in rows if "validation" in row]
        assert told in lines and told[-1] == pytest.approx(held_out[-1], rel=0.3)
    assert len(figures[0].axes[1].get_legend().get_texts()) >= 3


def copied(finished, out, up_to=None):
    """A run as a kill leaves it: without its results, with the checkpoints of the steps up to one."""
    shutil.copytree(finished, out)
    if up_to:
        shutil.rmtree(out / "final")
        (out / "results.json").unlink()
        for checkpoint in (out / "checkpoints").iterdir():
            if checkpoint.name > f"step-{up_to:08d}":
                shutil.rmtree(checkpoint)
    return out


def test_it_goes_on_to_the_bit(finished, prepared, teacher, tmp_path, capsys):
    stopped = copied(finished, tmp_path / "stopped", up_to=8)
    assert main(arguments(prepared, teacher, stopped)) == 0
    assert f"Resuming from {stopped}/checkpoints/step-00000008." in capsys.readouterr().out
    ours, theirs = (load_file(out / "final" / "model.safetensors") for out in (stopped, finished))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("up_to", [None, 8])
def test_a_run_does_not_go_on_with_another_teacher(up_to, finished, prepared, teacher, tmp_path, capsys):
    """Another one in the same place: its path says nothing of it."""
    out, aside = copied(finished, tmp_path / "run", up_to), shutil.copytree(teacher, tmp_path / "aside")
    try:
        save(teacher, prepared.tokenizer, seed=5)
        assert main(arguments(prepared, teacher, out)) == 2
    finally:
        shutil.copytree(aside, teacher, dirs_exist_ok=True)
    assert "was trained with another teacher: give that one" in capsys.readouterr().err
    assert main(arguments(prepared, teacher, out, "--teacher=none", f"--init-from={teacher}", "--keep-layers=half",
                          "--softmax=full")) == 2  # fmt: skip
    assert "teacher: " in capsys.readouterr().err
    assert main(arguments(prepared, teacher, out)) == 0


def test_a_teacher_that_is_gone_is_said(finished, prepared, tmp_path, capsys):
    out = copied(finished, tmp_path / "run", up_to=8)
    settings = yaml.safe_load((out / "settings.yaml").read_text())
    (out / "settings.yaml").write_text(yaml.safe_dump(settings | {"teacher": str(tmp_path / "gone")}))
    assert main(arguments(prepared, tmp_path / "gone", out)) == 2
    assert f"{tmp_path / 'gone'} is not a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_student_is_fine_tuned_as_any_bert(finished, tmp_path):
    rows = [{"text": f"the {('heart', 'liver')[n % 2]} rate {n}", "label": ("a", "b")[n % 2]} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"--model={finished / 'final'}", f"--train={tmp_path / 'rows.jsonl'}", f"--out={tmp_path / 'out'}"]
    assert finetune([*given, "--budget=2steps", "--seeds=1", "--device=cpu"]) == 0


# --- what is refused


def vocabulary_of(prepared, folder):
    """The tokenizer with its last two entries exchanged."""
    entries = (folder / "vocab.txt").read_text().splitlines()
    entries[-1], entries[-2] = entries[-2], entries[-1]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")


MISTAKES = {
    "no folder": (["--teacher=nowhere"], "nowhere is not a folder"),
    "a preset": (["--preset=tiny"], "--preset cannot be combined with --teacher"),
    "two weights": (["--teacher-weights=5,2"], "--teacher-weights are three numbers"),
    "a negative weight": (["--teacher-weights=5,2,-1"], "--teacher-weights are three numbers"),
    "nothing of the teacher": (["--teacher-weights=0,2,0"], "--teacher-weights are three numbers"),
    "a sampled softmax": (["--softmax=sampled"], "--softmax sampled leaves out words"),
    "weights alone": (["--teacher=none", "--teacher-weights=1,1,1"], "--teacher-weights is for a --teacher"),
    "positions alone": (["--teacher=none", "--teacher-positions=masked"], "--teacher-positions is for a --teacher"),
    "layers of nothing": (["--teacher=none", "--keep-layers=half"], "--keep-layers has no layers to keep"),
    "a layer too many": (["--keep-layers=0,4"], "--keep-layers 4 is not there"),
    "falling layers": (["--keep-layers=2,1"], "--keep-layers 2,1: give numbers"),
    "a layer twice": (["--keep-layers=1,1"], "--keep-layers 1,1: give numbers"),
    "a negative layer": (["--keep-layers=-1"], "--keep-layers -1: give numbers"),
    "no number": (["--keep-layers=some"], "'some' is not"),
    "longer sequences": (["--sequence-length=64"], "reads 48 tokens at most"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused(mistake, prepared, teacher, tmp_path, capsys):
    given, words = MISTAKES[mistake]
    assert_refused(main, arguments(prepared, teacher, tmp_path / "run", *given), words, tmp_path / "run", capsys)


def assert_refused(main, given, words, out, capsys):
    assert main(given) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1 and not out.exists(), said


def test_a_teacher_that_does_not_fit_is_refused(prepared, tmp_path, capsys):
    def refused(words, folder, *more):
        given = arguments(prepared, folder, tmp_path / "run", *more)
        assert_refused(main, given, words, tmp_path / "run", capsys)

    bare = save(tmp_path / "bare", prepared.tokenizer, BertForSequenceClassification)
    refused("has no MLM head (it lacks cls.predictions", bare)
    foreign = save(tmp_path / "foreign", prepared.tokenizer)
    vocabulary_of(prepared, foreign)
    refused(f"prepare the corpus with --tokenizer {foreign}", foreign)
    shorter = save(tmp_path / "shorter", type(prepared.tokenizer)(
        prepared.tokenizer.pieces[:-3], prepared.tokenizer.lowercase, prepared.tokenizer.strip_accents))  # fmt: skip
    refused("has vocabulary entries that the teacher", shorter)


def not_fitting(kind, prepared, teacher, folder):
    """A student or a teacher that does not fit, in a folder; the options that name it, and what is said."""
    sizes = {"narrow": {"hidden_size": 16}, "rows": {"rows": 3}, "short": {"max_position_embeddings": 32}}
    if kind in ("electra", "albert"):
        config = FAMILIES[kind].config.from_preset("tiny", prepared.tokenizer.vocab_size, max_position_embeddings=48)
        save_model_folder(FAMILIES[kind].pretraining(config), prepared.tokenizer, folder)
    else:
        save(folder, prepared.tokenizer, **sizes.get(kind, {}))
    if kind == "tokenizer":
        vocabulary_of(prepared, folder)
    student, alone = (f"--init-from={folder}", f"--teacher={teacher}"), (f"--teacher={folder}",)
    return {
        "narrow": (student, "so that their states do not compare: leave these out with --teacher-weights 5,2,0"),
        "rows": (student, "word embeddings and the teacher"),
        "tokenizer": (
            student,
            f"than the teacher {teacher}: give a student with the tokenizer of the teacher",
        ),
        "short": (alone, f"{folder} reads 32 tokens at most: use a --sequence-length up to that"),
        "electra": (alone, f"{folder} is of the type electra, and only a BERT can teach: give a BERT as --teacher"),
        "albert": (alone, f"{folder} is of the type albert, and only a BERT can teach: give a BERT as --teacher"),
    }[kind]


@pytest.mark.parametrize("kind", ["narrow", "rows", "tokenizer", "short", "electra", "albert"])
def test_what_does_not_fit_is_refused_before_anything_is_prepared(
    kind, prepared, teacher, corpus_file, tmp_path, capsys
):
    options, words = not_fitting(kind, prepared, teacher, tmp_path / "other")
    given = arguments(prepared, teacher, tmp_path / "run", "--prepared=none", f"--corpus={corpus_file}", *options)
    assert_refused(main, given, words, tmp_path / "run", capsys)


def test_an_electra_is_no_student(prepared, teacher, tmp_path, capsys):
    not_fitting("electra", prepared, teacher, tmp_path / "electra")
    given = arguments(prepared, teacher, tmp_path / "run", f"--init-from={tmp_path / 'electra'}",
                      "--teacher-weights=5,2,0")  # fmt: skip
    assert_refused(main, given, "does not go on with: give a BERT as --init-from", tmp_path / "run", capsys)


def test_other_objectives_have_no_teacher(tmp_path, capsys):
    given = ["--teacher=bert", "--objective=mlm+sbo", "--masking=span", f"--out={tmp_path / 'run'}"]
    words = "--teacher goes with --objective mlm or mlm+nsp, not mlm+sbo"
    assert_refused(main, given, words, tmp_path / "run", capsys)


def test_added_entries_have_no_teacher(tmp_path, capsys):
    given = ["--teacher=bert", "--extend-vocab=10", f"--out={tmp_path / 'run'}"]
    assert_refused(main, given, "--extend-vocab adds entries that a --teacher does not know", tmp_path / "run", capsys)


def test_an_objective_without_a_teacher_has_no_facts(prepared):
    assert PretrainingObjective([]).facts == {}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["all", "masked"])
def test_two_processes_are_one_run(where, prepared, teacher, two_processes, tmp_path):
    fixed = ("--budget=6steps", "--optimizer=adamw", f"--teacher-positions={where}", "--micro-batch-tokens=150")
    assert main(arguments(prepared, teacher, tmp_path / "one", *fixed)) == 0
    two_processes("pretrain.run", arguments(prepared, teacher, tmp_path / "two", *fixed))
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert two["validation"] == pytest.approx(one["validation"], rel=1e-4) and two["processes"] == 2
    weights = [load_file(tmp_path / name / "final" / "model.safetensors") for name in ("one", "two")]
    assert max(float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0]) < 2e-5
