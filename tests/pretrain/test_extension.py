"""A BERT with a grown vocabulary: the same model, and new rows that are the means of their old pieces."""

import numpy as np
import pytest
import torch
from tokenizers import AddedToken

from data_prep.vocabulary.extension import cut
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertConfig, BertForPreTraining
from model.initialisation import POSITION_SCALE, sinusoids
from pretrain.build import extended, lengthened, make_sampler
from pretrain.engine.checkpoint import save_model_folder
from pretrain.masked_words import log_unigram
from pretrain.run import main
from pretrain.settings import PretrainSettings

NEW = ["hearts", "##ingly", "patients"]


@pytest.fixture
def model(small_tokenizer) -> BertForPreTraining:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=small_tokenizer.vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=48, initializer_range=0.2,
    )  # fmt: skip
    model = BertForPreTraining(config).eval()
    with torch.no_grad():
        model.mlm_head.bias.normal_()
    return model


def test_new_rows_are_the_means_of_the_old_pieces(model, small_tokenizer):
    grown = extended(model, small_tokenizer, small_tokenizer.extended(NEW))
    ids = {piece: i for i, piece in enumerate(small_tokenizer.vocabulary)}
    words, bias = model.bert.embeddings.word.weight, model.mlm_head.bias
    for row, pieces in ((98, ["heart", "##s"]), (99, ["##ing", "##ly"]), (100, ["patient", "##s"])):
        assert cut(NEW[row - 98], ids) == pieces
        old = [ids[piece] for piece in pieces]
        torch.testing.assert_close(grown.bert.embeddings.word.weight[row], words[old].mean(0))
        torch.testing.assert_close(grown.mlm_head.bias[row], bias[old].mean(0))


def test_the_scores_of_the_old_entries_are_the_same(model, small_tokenizer):
    grown = extended(model, small_tokenizer, small_tokenizer.extended(NEW)).eval()
    ids = torch.randint(5, 98, (3, 20))
    mask = torch.ones_like(ids)
    before, after = model(ids, mask), grown(ids, mask)
    assert after.prediction_logits.shape[-1] == 101
    torch.testing.assert_close(after.prediction_logits[..., :98], before.prediction_logits)
    torch.testing.assert_close(after.seq_relationship_logits, before.seq_relationship_logits)


def test_rows_beyond_the_old_tokenizer_are_used_before_new_ones_are_added(small_tokenizer):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=128, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    padded = BertForPreTraining(config.changed(intermediate_size=64))
    grown = extended(padded, small_tokenizer, small_tokenizer.extended(NEW))
    assert grown.config.vocab_size == 128
    words = padded.bert.embeddings.word.weight
    torch.testing.assert_close(grown.bert.embeddings.word.weight[101:], words[101:])
    heart = [small_tokenizer.vocabulary.index(piece) for piece in ("heart", "##s")]
    torch.testing.assert_close(grown.bert.embeddings.word.weight[98], words[heart].mean(0))


def test_further_positions_begin_as_those_there_are(model):
    grown = lengthened(model, 110)
    before, after = model.bert.embeddings.position.weight, grown.bert.embeddings.position.weight
    assert grown.config.max_position_embeddings == 110
    copies = torch.cat([before, before, before])[:110]
    torch.testing.assert_close(after[:48], before)
    # Numbers drawn at random are as good as orthogonal to sinusoids.
    assert (after - copies).norm() < 0.1 * copies.norm()
    ids = torch.randint(5, 98, (2, 48))
    mask = torch.ones_like(ids)
    torch.testing.assert_close(grown.eval()(ids, mask).prediction_logits, model(ids, mask).prediction_logits)


@pytest.mark.parametrize("learned", [0.0, 0.01])
def test_positions_that_began_as_sinusoids_go_on_as_sinusoids(learned, model):
    """As a fresh model of that length has them, with what was learned at the positions that are copied."""
    model.look_at_neighbours()
    with torch.no_grad():
        added = learned * torch.randn(48, 32)
        model.bert.embeddings.position.weight += added
    expected = POSITION_SCALE * sinusoids(110, 32) + torch.cat([added, added, added])[:110]
    found = lengthened(model, 110).bert.embeddings.position.weight
    assert (found - expected).norm() < (0.2 * learned + 1e-5) / POSITION_SCALE * expected.norm()


@pytest.mark.parametrize("file", ["", "modules.json"])
def test_a_run_continues_at_a_greater_length(file, model, small_tokenizer, random_corpus, tmp_path, capsys):
    save_model_folder(model, small_tokenizer, tmp_path / "bert")
    if file:
        (tmp_path / "bert" / file).write_text("[]")
    given = [f"--corpus={random_corpus}", f"--init-from={tmp_path}/bert", "--sequence-length=96", "--batch-size=8"]
    assert main([*given, f"--out={tmp_path}/run", "--device=cpu", "--budget=2steps", "--evaluations=1"]) == 0
    printed = capsys.readouterr().out
    assert "reads 48 tokens: it gets positions for 96" in printed
    assert ("give finetune.embed its --pooling" in printed) == bool(file)
    final = BertForPreTraining.from_pretrained(tmp_path / "run" / "final")
    assert final.config.max_position_embeddings == 96
    assert not (tmp_path / "run" / "final" / "modules.json").exists()


def test_a_run_continues_with_the_words_of_its_corpus(model, small_tokenizer, random_corpus, tmp_path, capsys):
    save_model_folder(model, small_tokenizer, tmp_path / "bert")
    small = ["--sequence-length=32", "--batch-size=8", "--device=cpu", "--budget=3steps", "--evaluations=1"]
    given = [f"--corpus={random_corpus}", f"--init-from={tmp_path}/bert", "--extend-vocab=10", *small, "--workers=1"]
    assert main([*given, "--dry-run"]) == 0
    assert main([*given, f"--out={tmp_path}/run"]) == 0
    tokenizer = WordPieceTokenizer.load(tmp_path / "run" / "final")
    assert tokenizer.vocab_size == 108 and tokenizer.begins_with(small_tokenizer)
    final = BertForPreTraining.from_pretrained(tmp_path / "run" / "final")
    assert final.config.vocab_size == 108
    # What was prepared so is trained on in a second way, and the run goes on.
    prepared = [f"--prepared={tmp_path}/run/prepared", f"--init-from={tmp_path}/bert", *small]
    assert main([*prepared, f"--out={tmp_path}/other"]) == 0
    assert main([*given, f"--out={tmp_path}/run", "--budget=5steps"]) == 0
    assert "Resuming from" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--extend-vocab=10"]])
def test_a_run_continues_with_the_tokens_that_were_added_to_a_tokenizer(
    more, model, small_tokenizer, random_corpus, tmp_path, capsys
):
    save_model_folder(model, small_tokenizer, tmp_path / "bert")
    added = [AddedToken("heart rate"), AddedToken("<e1>", special=True)]
    tokenizer = WordPieceTokenizer(small_tokenizer.pieces, True, False, added=added)
    tokenizer.save(tmp_path / "bert", 48)
    small = ["--sequence-length=32", "--batch-size=8", "--device=cpu", "--budget=2steps", "--evaluations=1"]
    given = [f"--corpus={random_corpus}", f"--init-from={tmp_path}/bert", *small, *more, "--workers=1"]
    assert main([*given, f"--out={tmp_path}/short"]) == 2
    said = capsys.readouterr().err
    assert "has 98 word embeddings and a tokenizer of 100 entries" in said and said.count("\n") == 1
    save_model_folder(extended(model, small_tokenizer, tokenizer), tokenizer, tmp_path / "bert")
    assert main([*given, f"--out={tmp_path}/run"]) == 0
    found = WordPieceTokenizer.load(tmp_path / "run" / "final")
    assert found.begins_with(tokenizer) and found.encode(["the heart rate<e1>"])[0][-2:] == [98, 99]
    final = BertForPreTraining.from_pretrained(tmp_path / "run" / "final")
    assert final.config.vocab_size == found.vocab_size == (110 if more else 100)


def test_a_new_mlm_head_starts_from_word_frequencies_and_one_that_is_there_stays(
    model, small_tokenizer, random_corpus, tmp_path
):
    """Also of a model that gets entries and positions."""
    save_model_folder(model, small_tokenizer, tmp_path / "whole")
    save_model_folder(model.bert, small_tokenizer, tmp_path / "encoder")
    given = [f"--corpus={random_corpus}", "--sequence-length=96", "--batch-size=8", "--extend-vocab=10", "--workers=1"]
    given += ["--device=cpu", "--budget=1steps", "--evaluations=1", "--learning-rate=1e-9"]
    for name in ("whole", "encoder"):
        assert main([*given, f"--init-from={tmp_path / name}", f"--out={tmp_path}/{name}-run"]) == 0
    whole, encoder = (
        BertForPreTraining.from_pretrained(tmp_path / f"{name}-run" / "final").mlm_head.bias.detach()
        for name in ("whole", "encoder")
    )
    counts = np.load(tmp_path / "encoder-run" / "prepared" / "unigram_counts.npy")
    torch.testing.assert_close(whole[:98], model.mlm_head.bias.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(encoder, torch.from_numpy(log_unigram(counts)).float(), rtol=0, atol=1e-6)


def test_rows_without_an_entry_are_drawn_too(small_tokenizer, prepared, tmp_path, monkeypatch):
    config = BertConfig(vocab_size=prepared.tokenizer.vocab_size + 30, hidden_size=32, num_hidden_layers=1,
                        num_attention_heads=2, intermediate_size=64)  # fmt: skip
    save_model_folder(BertForPreTraining(config), prepared.tokenizer, tmp_path / "bert")
    monkeypatch.setattr("pretrain.build.DRAWN", 1)
    settings = PretrainSettings(init_from=str(tmp_path / "bert"), softmax="sampled")
    assert len(make_sampler(settings, prepared).draw(1)) == config.vocab_size


def test_nothing_to_extend_is_refused(random_corpus, tmp_path, capsys):
    assert main([f"--corpus={random_corpus}", "--extend-vocab=10", f"--out={tmp_path}/run"]) == 2
    assert "--init-from" in capsys.readouterr().err
