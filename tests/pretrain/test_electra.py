"""ELECTRA: what is masked, drawn and judged; its losses beside those of transformers; runs from text to final/."""

import copy
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from scipy.stats import chisquare

from data_prep.examples.packing import ShardExamples
from data_prep.examples.random_keys import keys, uniform
from data_prep.settings import ExampleSettings
from model import (
    BertConfig,
    BertForPreTraining,
    ElectraConfig,
    ElectraForPreTraining,
    ElectraForTokenClassification,
    ElectraModel,
)
from model.electra_names import ELECTRA_NAMES
from model.electra_pair import DiscriminatorAndGenerator
from pretrain.batches import BatchMaker, ExampleStream, TrainingPlan
from pretrain.build import extended, make_model
from pretrain.electra import Electra, ReplacementMaker, sampled
from pretrain.engine.batches import Position
from pretrain.engine.checkpoint import save_model_folder
from pretrain.fill_mask import MaskFiller
from pretrain.replaced_tokens import ReplacementScores
from pretrain.run import main
from pretrain.settings import PretrainSettings

NO_DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)


@pytest.fixture(scope="module")
def examples(prepared):
    stream = ExampleStream(ShardExamples.of(prepared, "train", 48, seed=1, next_sentence=False))
    return next(stream.batches(300, Position()))[0]


def maker_of(prepared, tokens=10**9, plan=TrainingPlan((0.15, 0.15))):  # noqa: B008  # a frozen dataclass
    return ReplacementMaker(prepared.train, prepared.tokenizer, "token", tokens, plan=plan)


@pytest.fixture(scope="module")
def model(prepared):
    """Of another width in the generator, in float64."""
    torch.manual_seed(0)
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48}
    config = ElectraConfig.from_preset("tiny", **sizes, **NO_DROPOUT, initializer_range=0.2)
    return DiscriminatorAndGenerator(config).double().eval()


@pytest.fixture
def objective(prepared):
    return Electra(prepared.unigram_counts)


# --- what is masked, drawn and judged


def test_of_masked_tokens_85_in_100_are_mask_and_none_is_random(prepared, examples):
    batch = maker_of(prepared).packed(examples)
    shown, true = batch.input_ids[batch.masked_positions], batch.masked_targets
    is_mask, is_kept = shown == prepared.tokenizer.mask_id, shown == true
    assert (is_mask | is_kept).all()
    assert float(is_mask.double().mean()) == pytest.approx(0.85, abs=4 * (0.85 * 0.15 / len(true)) ** 0.5)
    assert len(true) / batch.num_tokens == pytest.approx(0.15, abs=0.01)


def test_held_out_masks_are_those_of_every_other_run(prepared):
    examples = ShardExamples.of(prepared, "validation", 48)(0)
    ours = ReplacementMaker(prepared.validation, prepared.tokenizer, "token", 10**9).packed(examples)
    theirs = BatchMaker(prepared.validation, prepared.tokenizer, "token", 10**9).packed(examples)
    for name in ("input_ids", "masked_positions", "masked_targets"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    again = ReplacementMaker(prepared.validation, prepared.tokenizer, "token", 10**9).packed(examples)
    assert torch.equal(ours.chances, again.chances)


def test_a_chance_is_of_an_example_and_a_position_whatever_batch_they_are_in(prepared, examples):
    whole = maker_of(prepared).packed(examples[:40])
    expected, found = {}, {}
    for chances, batches in ((expected, [(whole, examples[:40])]),
                             (found, [(maker_of(prepared).packed(examples[n : n + 8]), examples[n : n + 8])
                                      for n in range(0, 40, 8)])):  # fmt: skip
        for batch, some in batches:
            for place, chance in zip(batch.masked_positions.tolist(), batch.chances.tolist(), strict=True):
                number = int((batch.sequence_starts[1:] <= place).sum())
                position = place - int(batch.sequence_starts[number])
                chances[int(some.key[number]), position] = chance
                by_hand = float(uniform(keys(0, "generator", 0, some.key[number], position)))
                assert chance == pytest.approx(by_hand, abs=1e-7)
    assert expected == found and len(expected) == len(whole.masked_positions)
    values = np.array(list(expected.values()))
    assert chisquare(np.histogram(values, 10, (0, 1))[0]).pvalue > 1e-3


def test_the_frequencies_of_what_is_drawn_are_those_of_the_softmax():
    torch.manual_seed(0)
    logits = torch.randn(3, 12) * 2
    logits[0, 3] = float("-inf")
    count = 40_000
    chances = torch.from_numpy(uniform(keys(1, "test", 0, np.arange(count))).astype(np.float32))
    for row in logits:
        drawn = sampled(row.expand(count, -1), chances)
        found, expected = torch.bincount(drawn, minlength=12).numpy(), (row.double().softmax(-1) * count).numpy()
        possible = expected > 0
        assert not found[~possible].any()
        assert chisquare(found[possible], expected[possible]).pvalue > 1e-3
    # The ends of the interval, and a share that rounding takes from the sum.
    assert sampled(torch.zeros(2, 4), torch.tensor([0.0, 1.0])).tolist() == [0, 3]
    assert sampled(torch.tensor([[0.0, 50.0, 0.0]] * 2), torch.tensor([0.3, 0.9])).tolist() == [1, 1]


def test_a_token_that_is_drawn_right_is_an_original(prepared, examples, objective, model):
    """By a generator that is certain of one word everywhere."""
    batch = maker_of(prepared).packed(examples[:60])
    word = int(batch.masked_targets.mode().values)
    certain = copy.deepcopy(model)
    with torch.no_grad():
        certain.generator.mlm_head.bias[word] = 1e4
        scores = objective.scores(certain, batch)
    wrong = batch.masked_positions[batch.masked_targets != word]
    expected = torch.zeros(batch.num_tokens).index_fill(0, wrong, 1.0)
    assert 0 < len(wrong) < len(batch.masked_positions) and torch.equal(scores.replaced, expected)
    # [CLS] and [SEP] are judged too, and what is not masked is not replaced.
    assert objective.counts(batch) == {"rtd": batch.num_tokens, "mlm": len(batch.masked_targets)}
    # The discriminator reads the words that were drawn: no [MASK] is left.
    filled = batch.input_ids.index_fill(0, batch.masked_positions, word)
    assert torch.equal(scores.tokens, certain.replaced_scores(replace(batch, input_ids=filled)))


def test_results_are_those_that_are_counted_by_hand(prepared, examples, objective):
    part, batch = objective.parts[0], maker_of(prepared).packed(examples[:1])
    replaced, tokens = torch.zeros(batch.num_tokens), torch.full((batch.num_tokens,), -3.0)
    replaced[[1, 2, 5, 6]], tokens[[1, 2, 3]] = 1.0, 2.0
    scores = ReplacementScores(words=None, pair=None, tokens=tokens, replaced=replaced)
    sums = {name: float(value) for name, value in part.score_sums(scores, batch).items()}
    found = part.results(sums | {"rtd": batch.num_tokens})
    total = batch.num_tokens
    assert found["rtd_accuracy"] == pytest.approx(1 - 3 / total) and found["rtd_majority"] == pytest.approx(
        1 - 4 / total
    )
    assert (found["rtd_precision"], found["rtd_recall"]) == (pytest.approx(2 / 3), pytest.approx(1 / 2))
    right, wrong = np.log1p(np.exp([-2.0, -3.0])), np.log1p(np.exp([2.0, 3.0]))
    by_hand = 2 * right[0] + wrong[0] + 2 * wrong[1] + (total - 5) * right[1]
    assert found["rtd_loss"] == pytest.approx(by_hand / total, rel=1e-5)


def test_a_discriminator_that_finds_nothing_at_the_end_is_told(objective):
    def said(recall, share):
        words = {"mlm_loss": 1.0, "unigram_entropy": 3.0, "most_frequent_accuracy": 0.1}
        return objective.warnings([{"step": 9, "validation": words | {"rtd_recall": recall}}], share)

    assert "finds 0.5% of the replaced tokens: give a longer --budget" in said(0.005, 1.0)["nothing found"]
    assert not said(0.005, 0.5) and not said(0.3, 1.0)


def test_the_best_model_has_the_lowest_sum_of_what_is_learned(objective):
    assert objective.judge({"rtd_loss": 0.1, "mlm_loss": 2.0}) == [pytest.approx(7.0)]


# --- losses and gradients


@pytest.fixture
def theirs(model, tmp_path):
    """transformers' two classes from the folder of both, with embeddings that they share."""
    model.save_pretrained(tmp_path)
    kinds = (tmp_path, transformers.ElectraForPreTraining), (tmp_path / "generator", transformers.ElectraForMaskedLM)
    found, generator = (kind.from_pretrained(folder, dtype=torch.float64).eval() for folder, kind in kinds)
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"):
        setattr(generator.electra.embeddings, name, getattr(found.electra.embeddings, name))
    generator.generator_lm_head.weight = found.electra.embeddings.word_embeddings.weight
    # Id 0 is a word like any other here; transformers gives it no gradient.
    found.electra.embeddings.word_embeddings.padding_idx = None
    return found, generator


def test_losses_and_gradients_are_those_of_transformers(prepared, examples, objective, model, theirs):
    discriminator, generator = theirs
    batch = maker_of(prepared).packed(examples[:12])
    model.zero_grad()
    sums, counts = objective.loss_sums(model, batch), objective.counts(batch)
    loss = sum(sums[name] / counts[name] for name in sums)
    loss.backward()
    real, types = batch.pad(torch.ones_like(batch.input_ids)), batch.pad(batch.token_type_ids)
    ids, labels = batch.pad(batch.input_ids), torch.full_like(batch.input_ids, -100)
    labels[batch.masked_positions] = batch.masked_targets
    labels = torch.where(real == 1, batch.pad(labels), -100)
    words = generator(ids, real, types, labels=labels)
    drawn = sampled(words.logits[labels != -100].detach(), batch.chances)
    filled = ids.masked_scatter(labels != -100, drawn)
    original = torch.where(labels != -100, labels, ids)
    expected = words.loss + 50 * discriminator(filled, real, types, labels=(filled != original).long()).loss
    expected.backward()
    # Sums are in float32.
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for ours, reference in ((model.discriminator, discriminator), (model.generator, generator)):
        named = dict(reference.named_parameters())
        for name, parameter in ours.named_parameters():
            wanted = torch.cat([named[there].grad for there in ELECTRA_NAMES.of(name)])
            assert (parameter.grad - wanted).abs().max() <= 1e-4 * wanted.abs().max() + 1e-9, name


def test_the_discriminator_teaches_the_generator_nothing_but_through_the_embeddings(
    prepared, examples, objective, model
):
    batch = maker_of(prepared).packed(examples[:12])
    for name, silent in (("rtd", model.generator), ("mlm", model.discriminator)):
        model.zero_grad()
        objective.loss_sums(model, batch)[name].backward()
        for inside, parameter in silent.named_parameters():
            is_shared = inside.startswith("bert.embeddings.") and "projection" not in inside
            assert (parameter.grad is not None and parameter.grad.any()) if is_shared else parameter.grad is None, (
                inside
            )


def test_a_step_is_the_same_in_any_micro_batches_and_one_without_examples_adds_nothing(
    prepared, examples, objective, model
):
    found = []
    for tokens in (10**9, 120):
        maker = maker_of(prepared, tokens)
        model.zero_grad()
        batches = [*maker.micro_batches(examples[:16]), maker.empty_batch()]
        for batch in batches:
            sum(objective.loss_sums(model, batch).values()).backward()
        assert objective.counts(batches[-1]) == {"rtd": 0, "mlm": 0}
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert len(batches) > 4
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() <= 1e-6 * one.abs().max() + 1e-12


# --- runs


def arguments(prepared, out, budget="12steps", **changes):
    fixed = {"prepared": prepared.folder, "out": out, "budget": budget, "preset": "tiny", "sequence-length": 48,
             "batch-size": 8, "log-every": 4, "evaluations": 2, "device": "cpu", "precision": "fp32",
             "checkpoint-every": "4steps", "keep-checkpoints": 9, "objective": "electra"}  # fmt: skip
    return [f"--{name}={value}" for name, value in (fixed | changes).items() if value is not None]


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory):
    out = tmp_path_factory.mktemp("electra") / "run"
    assert main(arguments(prepared, out, dropout=0.1)) == 0
    return out


def test_a_run_is_evaluated_drawn_and_written_on_the_card(finished):
    results = json.loads((finished / "results.json").read_text())["validation"]
    assert {"rtd_loss", "rtd_accuracy", "rtd_majority", "rtd_recall", "mlm_loss", "unigram_entropy"} <= set(results)
    assert 0.8 < results["rtd_majority"] < 0.9 and results["mlm_loss"] < results["unigram_entropy"] + 1
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    # Without the weight of 50.
    assert all(0.1 < row["rtd_loss"] < 1 for row in rows if "learning_rate" in row)
    card = (finished / "final" / "README.md").read_text()
    for words in ("# An ELECTRA of its own domain", "- name: an ELECTRA of its own domain", "generator",
                  "pipeline_tag: feature-extraction", "tags: [electra, feature-extraction, domain-bert]"):  # fmt: skip
        assert words in card
    assert "| RTD accuracy |" in card and "replaced tokens (RTD) and masked words (MLM) of its generator" in card
    assert "| mask_share | 0.15 |" in card and "| softmax | full |" in card
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_final_opens_in_transformers_as_discriminator_and_in_it_the_generator_fills_masks(finished, prepared):
    final = finished / "final"
    discriminator = transformers.AutoModelForPreTraining.from_pretrained(final)
    assert type(discriminator) is transformers.ElectraForPreTraining
    text = "the heart [MASK] was raised ."
    fill = transformers.pipeline("fill-mask", model=str(final / "generator"))
    theirs = {found["token_str"]: found["score"] for found in fill(text, top_k=5)}
    ours = dict(MaskFiller(final)([text], top_k=5)[0][0])
    assert ours.keys() == theirs.keys() and all(ours[word] == pytest.approx(theirs[word], abs=1e-5) for word in ours)
    words = [load_file(folder / "model.safetensors")["electra.embeddings.word_embeddings.weight"]
             for folder in (final, final / "generator")]  # fmt: skip
    assert torch.equal(*words)


def weights(out):
    return [load_file(out / "final" / name / "model.safetensors") for name in ("", "generator")]


def test_it_goes_on_to_the_bit(finished, prepared, tmp_path, capsys):
    stopped = shutil.copytree(finished, tmp_path / "stopped")
    shutil.rmtree(stopped / "final")
    (stopped / "results.json").unlink()
    for checkpoint in (stopped / "checkpoints").iterdir():
        if checkpoint.name > "step-00000004":
            shutil.rmtree(checkpoint)
    assert main(arguments(prepared, stopped, dropout=0.1)) == 0
    assert f"Resuming from {stopped}/checkpoints/step-00000004." in capsys.readouterr().out
    for ours, theirs in zip(weights(stopped), weights(finished), strict=True):
        assert ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert (stopped / "results.json").exists()


def test_a_fresh_model_says_that_any_token_is_replaced_as_often_as_one_is_masked(prepared):
    settings = PretrainSettings(prepared=str(prepared.folder), objective="electra", preset="tiny", dropout=0.0)
    fresh = make_model(settings, prepared, Electra(prepared.unigram_counts, mask_share=0.3)).eval()
    batch = maker_of(prepared).packed(ShardExamples.of(prepared, "train", 48, 1, next_sentence=False)(0)[:20])
    with torch.no_grad():
        said = fresh.replaced_scores(batch).sigmoid()
    assert said.mean().item() == pytest.approx(0.3, abs=0.01)


def test_a_learned_discriminator_keeps_what_it_says_beside_a_fresh_generator(prepared, tmp_path):
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48}
    both = DiscriminatorAndGenerator(ElectraConfig.from_preset("tiny", **sizes, **NO_DROPOUT))
    torch.nn.init.constant_(both.discriminator.rtd_head.output.bias, 0.7)
    save_model_folder(both, prepared.tokenizer, tmp_path)
    shutil.rmtree(tmp_path / "generator")
    given = {"prepared": str(prepared.folder), "objective": "electra", "init_from": str(tmp_path)}
    settings = PretrainSettings(**given, dropout=0.0, examples=ExampleSettings(sequence_length=48))
    continued = make_model(settings, prepared, Electra(prepared.unigram_counts))
    assert continued.discriminator.rtd_head.output.bias.item() == pytest.approx(0.7)
    words = continued.generator.mlm_head.bias
    assert words.argmax() == int(prepared.unigram_counts.argmax()) and words.std() > 0.1


def test_a_discriminator_without_its_head_begins_with_the_share_of_masked_tokens(prepared, tmp_path):
    """As a fine-tuned one has none, beside a generator that has learned."""
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48}
    both = DiscriminatorAndGenerator(ElectraConfig.from_preset("tiny", **sizes, **NO_DROPOUT))
    torch.nn.init.constant_(both.generator.mlm_head.bias, 0.7)
    save_model_folder(both, prepared.tokenizer, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: each for name, each in tensors.items() if "discriminator_predictions" not in name},
              tmp_path / "model.safetensors", {"format": "pt"})  # fmt: skip
    given = {"prepared": str(prepared.folder), "objective": "electra", "init_from": str(tmp_path)}
    settings = PretrainSettings(**given, dropout=0.0, examples=ExampleSettings(sequence_length=48))
    continued = make_model(settings, prepared, Electra(prepared.unigram_counts, 0.15))
    assert continued.discriminator.rtd_head.output.bias.item() == pytest.approx(math.log(0.15 / 0.85))
    assert (continued.generator.mlm_head.bias == 0.7).all()


@pytest.mark.slow
def test_a_run_continues_from_its_final_and_gets_a_generator_where_there_is_none(finished, prepared, tmp_path, capsys):
    start = shutil.copytree(finished / "final", tmp_path / "start")
    given = {"init-from": start, "preset": None, "sequence-length": 64}
    assert main(arguments(prepared, tmp_path / "one", "1steps", **given)) == 0
    printed = capsys.readouterr().out
    assert "initialised at random" not in printed and "0.1 of that of a fresh model, as it has learned" in printed
    assert "from an existing ELECTRA" in (tmp_path / "one" / "final" / "README.md").read_text()
    shutil.rmtree(start / "generator")
    assert main(arguments(prepared, tmp_path / "two", "1steps", **given)) == 0
    printed = capsys.readouterr().out
    assert "0.4 of that of a fresh model, as its MLM head is new" in printed
    assert "start has no generator, " in printed and "The bias of its new MLM head starts from word frequ" in printed
    assert (tmp_path / "two" / "final" / "generator" / "config.json").exists()


def test_new_entries_begin_as_means_of_their_pieces_in_both_models(prepared, model):
    old, added = prepared.tokenizer, ["heartrate", "livercells", "highdose"]
    pair = copy.deepcopy(model).float()
    with torch.no_grad():
        pair.generator.mlm_head.bias.copy_(torch.randn(old.vocab_size))
    grown = extended(pair, old, old.extended(added))
    assert grown.generator.bert.embeddings.word.weight is grown.bert.embeddings.word.weight
    for before, after in ((pair.bert.embeddings.word.weight, grown.bert.embeddings.word.weight),
                          (pair.generator.mlm_head.bias, grown.generator.mlm_head.bias)):  # fmt: skip
        assert len(after) == old.vocab_size + 3 and torch.equal(after[: old.vocab_size], before)
        for row, (word, pieces) in enumerate(zip(added, old.encode(added), strict=True), old.vocab_size):
            assert len(pieces) > 1, word
            torch.testing.assert_close(after[row], before[pieces].mean(0))
    assert (grown.config.vocab_size, grown.generator.config.vocab_size) == (old.vocab_size + 3,) * 2


def test_a_discriminator_of_half_its_layers_keeps_its_generator(prepared, tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48, "num_hidden_layers": 4}
    pair = DiscriminatorAndGenerator(ElectraConfig.from_preset("tiny", **sizes, **NO_DROPOUT, initializer_range=0.2))
    save_model_folder(pair, prepared.tokenizer, tmp_path / "whole")
    given = {"prepared": str(prepared.folder), "objective": "electra", "init_from": str(tmp_path / "whole")}
    settings = PretrainSettings(**given, keep_layers="half", dropout=0.0, examples=ExampleSettings(sequence_length=48))
    half = make_model(settings, prepared, Electra(prepared.unigram_counts)).eval()
    half.save_pretrained(tmp_path / "half")
    theirs = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "whole").eval()
    theirs.electra.encoder.layer = torch.nn.ModuleList(theirs.electra.encoder.layer[number] for number in (0, 3))
    batch = maker_of(prepared).packed(ShardExamples.of(prepared, "train", 48, 1, next_sentence=False)(0)[:1])
    with torch.no_grad():
        expected = theirs(batch.input_ids[None], token_type_ids=batch.token_type_ids[None]).logits[0]
        for found in (half, DiscriminatorAndGenerator.from_pretrained(tmp_path / "half")):
            torch.testing.assert_close(found.replaced_scores(batch), expected, rtol=1e-4, atol=1e-4)
            scores = (each.masked_scores(batch, batch.masked_positions) for each in (found, pair.eval()))
            torch.testing.assert_close(*scores)


def test_the_bytes_of_both_models_are_those_of_their_files(model, tmp_path):
    model.save_pretrained(tmp_path)
    tensors = [load_file(folder / "model.safetensors") for folder in (tmp_path, tmp_path / "generator")]
    assert model.num_bytes == sum(each.numel() * each.element_size() for some in tensors for each in some.values())


def refused(given, capsys):
    assert main(given) == 2
    return capsys.readouterr().err


def test_what_does_not_go_together_is_refused_before_anything_is_written(finished, prepared, tmp_path, capsys):
    out = tmp_path / "x"
    said = refused(arguments(prepared, out, softmax="sampled"), capsys)
    assert "--softmax sampled cannot be combined with --objective electra, which needs full: leave it out" in said
    said = refused(arguments(prepared, out, family="bert"), capsys)
    assert "--family bert cannot be combined with --objective electra, which needs electra: leave it out" in said
    bert = BertForPreTraining(BertConfig.from_preset("tiny", vocab_size=prepared.tokenizer.vocab_size))
    save_model_folder(bert, prepared.tokenizer, tmp_path / "bert")
    said = refused(arguments(prepared, out, **{"init-from": tmp_path / "bert", "preset": None}), capsys)
    assert "bert is of the type bert, and --objective electra can continue only from electra" in said
    given = {"init-from": finished / "final", "preset": None, "objective": "mlm"}
    said = refused(arguments(prepared, out, **given), capsys)
    assert "is of the type electra, which --objective mlm does not go on with: give --objective electra" in said
    given = {"init-from": finished / "final" / "generator", "preset": None}
    said = refused(arguments(prepared, out, **given), capsys)
    assert f"{given['init-from']} is the generator of a model" in said and "give the folder of the model" in said
    assert not out.exists()


def test_masks_are_not_filled_by_a_discriminator_alone(finished, tmp_path):
    alone = shutil.copytree(finished / "final", tmp_path / "alone", ignore=shutil.ignore_patterns("generator"))
    from pretrain.engine.settings import PretrainError

    with pytest.raises(PretrainError, match="has not learned to fill masks: .* of an ELECTRA the generator"):
        MaskFiller(alone)


def test_a_plan_counts_both_models(prepared, tmp_path, capsys):
    assert main([*arguments(prepared, tmp_path / "x"), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    sizes = {"vocab_size": prepared.tokenizer.vocab_size, "max_position_embeddings": 48}
    both = DiscriminatorAndGenerator(ElectraConfig.from_preset("tiny", **sizes))
    assert f"{sum(p.numel() for p in both.parameters()):,} parameters" in printed
    assert "not computed for this objective" in printed and "RTD accuracy" in printed and not (tmp_path / "x").exists()


@pytest.mark.slow
def test_its_encoder_is_fine_tuned_embedded_and_turned_into_a_bert(finished, prepared, tmp_path):
    from finetune.finetuning import finetune
    from finetune.predictor import Classifier
    from finetune.settings import FinetuneSettings
    from finetune.vectors.embedder import Embedder

    texts = [f"the {'heart' if n % 2 else 'liver'} of patient {n} was measured ." for n in range(40)]
    rows = [{"text": text, "label": f"class {n % 2}"} for n, text in enumerate(texts)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = finetune(FinetuneSettings(
        model=str(finished / "final"), train=str(tmp_path / "labels.jsonl"), out=str(tmp_path / "labels"),
        budget="4steps", seeds=1, evaluations=1, device="cpu", precision="fp32", mlm_weight=0.5,
    ))  # fmt: skip
    ours = Classifier.load(made / "final", device="cpu").predict(texts[:1])[0]["probabilities"]
    classify = transformers.pipeline("text-classification", model=str(made / "final"), top_k=None)
    theirs = {found["label"]: found["score"] for found in classify(texts[:1])[0]}
    assert ours.keys() == theirs.keys() and all(ours[name] == pytest.approx(theirs[name], abs=1e-4) for name in ours)
    bert = ElectraModel.from_pretrained(finished / "final").as_bert()
    save_model_folder(bert, prepared.tokenizer, tmp_path / "bert")
    vectors = [Embedder(folder, device="cpu").embed(texts[:3]) for folder in (finished / "final", tmp_path / "bert")]
    assert np.array_equal(*vectors)


def test_a_tagger_of_transformers_is_known_by_its_class(tmp_path):
    from finetune.tasks.selection import task_of_folder

    ElectraForTokenClassification(ElectraConfig.from_preset("tiny", vocab_size=100)).save_pretrained(tmp_path)
    assert task_of_folder(tmp_path).name == "tagging"


def test_settings_resolve_to_a_full_softmax_and_15_in_100_unless_a_share_is_given(finished, prepared):
    import yaml

    stored = yaml.safe_load((finished / "settings.yaml").read_text())
    assert (stored["softmax"], stored["mask_share"], stored["family"]) == ("full", 0.15, "auto")
    assert PretrainSettings(objective="electra", mask_share=(0.3, 0.15)).mask_shares == (0.3, 0.15)


def test_the_discriminator_of_a_run_is_a_plain_one(finished):
    assert ElectraForPreTraining.from_pretrained(finished / "final").newly_initialised == ()
