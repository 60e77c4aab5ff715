"""Settings and a prepared corpus to what a run needs: model, objective, data, evaluation."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_prep.console.screen import say
from data_prep.examples.full_sentences import FullShardExamples
from data_prep.examples.packing import ShardExamples
from data_prep.examples.pairs import VERSION as PAIRS_VERSION
from data_prep.prepared import PreparedCorpus
from data_prep.vocabulary.extension import cut
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertConfig, BertForPreTraining
from model.families import FAMILIES, read_config
from model.initialisation import sinusoids

from .batches import BatchMaker, ExampleStream, PositionShift, TrainingPlan
from .engine.checkpoint import load_heads, read_state
from .engine.device import Precision
from .engine.distributed import World
from .engine.folder import family_of, open_model
from .engine.settings import PretrainError
from .evaluate import Evaluation
from .layers import kept_layers
from .objective import Part, PretrainingObjective
from .sampled_softmax import DRAWN, EntrySampler
from .settings import PretrainSettings


def open_for_pretraining(folder: str | Path, objective: PretrainingObjective) -> BertForPreTraining:
    """A model folder of ours or of transformers; heads that it lacks are initialised and printed.

    Raises:
        PretrainError: the folder cannot be used.
    """
    kind = objective.model_class(family_of(folder, PretrainError))
    model = open_model(kind, folder, PretrainError)
    if model.newly_initialised:
        say(f"{folder} has no {', '.join(model.newly_initialised)}: initialised at random.")
    return model


def open_checkpoint(
    checkpoint: Path, settings: PretrainSettings, prepared: PreparedCorpus, objective: PretrainingObjective
) -> tuple[BertForPreTraining, dict]:
    """The model and the state of a checkpoint of this run.

    Raises:
        PretrainError: it is damaged, or belongs to another corpus.
    """
    state = read_state(checkpoint, ("prepared", "evaluation"))
    if state["prepared"] != prepared.digest:
        raise PretrainError(f"{checkpoint} was trained on another corpus than {prepared.folder}: give another --out")
    model = open_for_pretraining(checkpoint, objective)
    model.set_dropout(settings.dropout)
    load_heads(checkpoint, model)
    check_model(model, checkpoint, prepared, settings.examples.longest)
    return model, state


def require_same_objective(checkpoint: Path, state: dict, objective: PretrainingObjective) -> None:
    """Raises PretrainError if the run began with another objective, or with one of other facts, or on examples that
    this version does not make.

    Checkpoints of older versions do not name their objective.
    """
    begun_with = state.get("objective", objective.name)
    if begun_with != objective.name:
        raise PretrainError(f"{checkpoint} learned {begun_with}, not {objective.name}: give another --out")
    for name, fact in objective.facts.items():
        if state.get(name) != fact:
            raise PretrainError(f"{checkpoint} was trained with another {name}: give that one, or another --out")
    if state.get("pairs", 1) != PAIRS_VERSION:
        raise PretrainError(
            f"{checkpoint} was trained on sentence pairs of another version of this tool, which this one does not "
            "make: finish the run with that version, or give another --out"
        )


def make_model(
    settings: PretrainSettings, prepared: PreparedCorpus, objective: PretrainingObjective
) -> BertForPreTraining:
    """The model a run starts from: fresh, or that of `--init-from`, or some layers of it or of the teacher.

    A fresh model is BERT's, with two things that it would otherwise spend its first steps on learning: what the
    objective knows of the corpus (see `Part.start`), and attention that looks at neighbours
    (see `model.initialisation`). Both are learned further like everything else. The first of them is also for a model
    to continue that lacks the head.

    The run trains with its own dropout; the config keeps that of the start, or BERT's, for fine-tuning.

    Raises:
        PretrainError: the model to continue from does not fit the corpus or the sequence length.
    """
    torch.manual_seed(settings.examples.seed)
    length = settings.examples.longest
    if (folder := settings.starts_from) is not None:
        tokenizer = WordPieceTokenizer.load(folder)
        check_tokenizer(tokenizer, folder, prepared)
        model = open_for_pretraining(folder, objective)
        check_embeddings(model, tokenizer, folder)
        new = {part.name for part in objective.parts if part.training_only or is_new(part, model)}
        model = of_kept_layers(model, settings)
        if prepared.tokenizer.vocab_size > tokenizer.vocab_size:
            model = extended(model, tokenizer, prepared.tokenizer)
        if (longest := model.config.max_position_embeddings) < length:
            say(f"{folder} reads {longest} tokens: it gets positions for {length}.")
            model = lengthened(model, length)
        check_model(model, folder, prepared, length)
        objective.start(model, {part.name for part in objective.parts} - new)
        if (Path(folder) / "modules.json").exists():
            # Of sentence-transformers.
            say(
                f"{folder} says how its token vectors are pooled into that of a text. The model of this run will not: "
                "if it is not the mean, give finetune.embed its --pooling."
            )
        if "mlm" in new:
            say("The bias of its new MLM head starts from word frequencies.")
        model.set_dropout(settings.dropout)
        return model
    size = prepared.tokenizer.vocab_size
    sizes = {"vocab_size": size, "max_position_embeddings": length, "pad_token_id": prepared.tokenizer.pad_id}
    family = FAMILIES[objective.family if settings.family == "auto" else settings.family]
    config = family.config.from_preset(settings.preset, **sizes)
    model = objective.model_class(family)(config)
    objective.start(model)
    model.look_at_neighbours()
    model.set_dropout(settings.dropout)
    return model


def is_new(part: Part, model: BertForPreTraining) -> bool:
    """Whether the folder of the model lacked the head of a part."""
    return part.head is not None and model.names.of(part.head)[0] in model.newly_initialised


def of_kept_layers(model: BertForPreTraining, settings: PretrainSettings) -> BertForPreTraining:
    """The model with the layers that `--keep-layers` names alone."""
    count = model.config.num_hidden_layers
    layers = kept_layers(settings, count)
    if len(layers) == count:
        return model
    listed = ", ".join(map(str, layers))
    say(f"Of the {count} layers of {settings.starts_from} the run takes over: {listed}.")
    return model.of_layers(layers)


def check_tokenizer(tokenizer: WordPieceTokenizer, folder: str | Path, prepared: PreparedCorpus) -> None:
    """Refuse a model whose tokenizer is not the one the corpus was prepared with, extended or not."""
    if not prepared.tokenizer.begins_with(tokenizer):
        raise PretrainError(
            f"the tokenizer of {folder} is not the one that {prepared.folder} was prepared with: prepare the corpus "
            f"with --tokenizer {folder}"
        )


def check_embeddings(model: BertForPreTraining, tokenizer: WordPieceTokenizer, folder: str | Path) -> None:
    """Refuse a model without an embedding for each entry of its tokenizer, those that were added among them."""
    if model.config.vocab_size < tokenizer.vocab_size:
        raise PretrainError(
            f"{folder} has {model.config.vocab_size} word embeddings and a tokenizer of {tokenizer.vocab_size} "
            "entries: give the model one for each token that was added (resize_token_embeddings of transformers)"
        )


def check_model(model: BertForPreTraining, folder: str | Path, prepared: PreparedCorpus, length: int) -> None:
    """Refuse a model whose sizes do not fit the vocabulary or the sequence length."""
    if model.config.vocab_size < prepared.tokenizer.vocab_size:
        raise PretrainError(
            f"{folder} has {model.config.vocab_size} word embeddings, the vocabulary of {prepared.folder} has "
            f"{prepared.tokenizer.vocab_size} entries: use the tokenizer that belongs to the model"
        )
    check_length(model.config, folder, length)


def check_length(config: BertConfig, folder: str | Path, length: int) -> None:
    """Refuse a model that reads shorter sequences."""
    if config.max_position_embeddings < length:
        raise PretrainError(
            f"{folder} reads {config.max_position_embeddings} tokens at most: use a --sequence-length up to that"
        )


def make_data(
    settings: PretrainSettings,
    prepared: PreparedCorpus,
    objective: PretrainingObjective,
    world: World,
    shift: PositionShift | None = None,
) -> tuple[ExampleStream, BatchMaker, Evaluation]:
    """Training examples, the maker of their micro-batches, and the evaluation on held-out text.

    Args:
        shift: of the positions of training examples.
    """
    examples, tokenizer, tokens = settings.examples, prepared.tokenizer, settings.micro_batch_tokens
    length, pairs = examples.longest, {"next_sentence": objective.needs_pairs, "exchange": objective.exchanges}
    stream = ExampleStream(training_examples(settings, prepared, objective))
    # Runs are compared on the same masks, whatever they are trained on.
    held_out = objective.batch_maker(prepared.validation, tokenizer, "token", tokens, prepared.validation_copied)
    precision = Precision(settings.device, settings.precision)
    held_out_examples = ShardExamples.of(prepared, "validation", length, **pairs)
    evaluation = Evaluation(held_out_examples, objective, held_out, precision, world)
    plan = TrainingPlan(settings.mask_shares, make_sampler(settings, prepared), shift)
    return stream, objective.batch_maker(prepared.train, tokenizer, examples.masking, tokens, plan=plan), evaluation


PACKINGS: dict[str, type[ShardExamples]] = {"windows": ShardExamples, "full-sentences": FullShardExamples}
"""`--packing` -> how shards are cut into examples."""


def training_examples(
    settings: PretrainSettings, prepared: PreparedCorpus, objective: PretrainingObjective
) -> ShardExamples:
    """The examples to learn from, of each shard.

    Raises:
        PretrainError: the objective learns from pairs, and these are none.
    """
    kind, examples = PACKINGS[settings.packing], settings.examples
    if objective.needs_pairs and not kind.has_pairs:
        raise PretrainError(f"--packing {settings.packing} makes no pairs, which {objective.name} learns from: drop it")
    pairs = objective.needs_pairs, objective.exchanges
    return kind.of(prepared, "train", examples.longest, examples.seed, *pairs)


def make_sampler(settings: PretrainSettings, prepared: PreparedCorpus) -> EntrySampler | None:
    """What draws the entries of a sampled softmax; None where all scores are wanted, or are hardly more."""
    counts = prepared.unigram_counts
    if settings.softmax == "full" or len(counts) <= 2 * DRAWN:
        return None
    # A model to continue may have more rows than its tokenizer has entries.
    rows = read_config(settings.init_from).vocab_size if settings.init_from else 0
    return EntrySampler(np.pad(counts, (0, max(0, rows - len(counts)))), settings.examples.seed, DRAWN)


@torch.no_grad()
def extended(model: BertForPreTraining, old: WordPieceTokenizer, new: WordPieceTokenizer) -> BertForPreTraining:
    """The model with a row for each entry that `new` has behind those of `old`.

    A new entry starts as the mean of the pieces that it was spelled with, in the word embedding, which is the decoder's
    matrix too, and in the decoder's bias. The scores of the old entries for a text in old pieces stay the same.

    Args:
        model: its word embedding may have more rows than `old` has entries.
    """
    rows = max(model.config.vocab_size, new.vocab_size)
    grown = model.remade(vocab_size=rows)
    before, after = dict(model.named_parameters()), dict(grown.named_parameters())
    for name, parameter in before.items():
        after[name][: len(parameter)].copy_(parameter)
    ids = {piece: number for number, piece in enumerate(old.vocabulary)}
    for number, entry in enumerate(new.vocabulary[old.vocab_size :], old.vocab_size):
        pieces = [ids[piece] for piece in cut(entry, ids)] or [old.unk_id]
        for old_rows, new_rows in zip(model.vocabulary_parameters(), grown.vocabulary_parameters(), strict=True):
            new_rows[number] = old_rows[pieces].mean(0)
    return grown


@torch.no_grad()
def lengthened(model: BertForPreTraining, length: int) -> BertForPreTraining:
    """The model with position embeddings for `length` tokens; the new ones continue the old.

    They begin as copies of the old, in order, so that near positions look at each other as they did (Beltagy et al.
    2020, section 5). As far as the old ones consist of the sinusoids that fresh models start from, the sinusoids go on
    in their place: else several positions look alike, and words have several neighbours (docs/tried.md).
    """
    grown = model.remade(max_position_embeddings=length)
    after = dict(grown.named_parameters())
    for name, parameter in model.named_parameters():
        is_longer = len(after[name]) > len(parameter)
        after[name].copy_(continued(parameter, length) if is_longer else parameter)
    return grown


def continued(positions: Tensor, length: int) -> Tensor:
    """Position embeddings [L, E] made longer: [length, E] (see `lengthened`)."""
    waves = sinusoids(length, positions.shape[1])
    known, learned = (table - table.mean(0) for table in (waves[: len(positions)], positions))
    share = (known * learned).sum() / known.square().sum()
    rows = torch.arange(length) % len(positions)
    return positions[rows] + share * (waves - waves[rows])
