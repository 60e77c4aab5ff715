"""Encoders that transformers computes, under the interface of ours: packed batches in, logits and states of tokens out.

The inner module is the class of transformers itself: its forward pass, its dropout, its weights in its own files.
"""

import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from .batch import PackedBatch, PaddingLayout, gathered
from .config import ModelError
from .huggingface import CONFIG_FILE, PretrainedModel, read_config, read_config_values
from .outputs import EncoderOutput, LogitsOutput
from .some_rows import SomeRows, learning
from .weights import StoredWeights, open_safetensors
from .wrapped_config import WrappedConfig, transformers_for

# Numbers that a new head may have, beside those of the file.
_MOST_OF_A_HEAD = 50_000_000
# What a folder was made for where its weights outside of the encoder are no head of a task.
_PRETRAINED = re.compile(r"For(MaskedLM|PreTraining)$")
# Modules of the encoder that read what its last layer gives.
_ABOVE_LAYERS = ("final_norm.",)
_IN_A_LAYER = re.compile(r"\blayers?\.\d+\.")


class WrappedModel(PretrainedModel):
    """A model of transformers, `theirs`, fresh from a config or read from a folder."""

    config_class = WrappedConfig
    config: WrappedConfig
    kinds: ClassVar[str] = "MODEL_MAPPING"
    """The name in transformers of the classes for this task, by config."""

    def __init__(self, config: WrappedConfig, theirs: nn.Module | None = None) -> None:
        super().__init__(config)
        self.theirs: Any = self._kind(config.theirs())(config.theirs()) if theirs is None else theirs

    @classmethod
    def _kind(cls, theirs: Any) -> Any:
        """The class of transformers; raises ModelError where this type of model has none for the task."""
        kinds = getattr(transformers_for(theirs.model_type), cls.kinds)
        if type(theirs) not in kinds:
            task = cls.kinds.removeprefix("MODEL_FOR_").removesuffix("_MAPPING").lower().replace("_", " ")
            raise ModelError(f"transformers has no class of {theirs.model_type} for {task}; give another model")
        return kinds[type(theirs)]

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *, new_head: bool = False, **config_changes: Any) -> Self:
        """The model of a folder, as `PretrainedModel.from_pretrained`, but of safetensors alone; no code in it is run.

        A head of a task is new with `new_head`, one of masked words that a task goes on with is kept. Missing
        values are drawn as transformers does.
        """
        folder = Path(folder)
        config = cast(WrappedConfig, read_config(folder, cls.config_class)).changed(**config_changes)
        theirs = config.theirs()
        kind, library, stored = cls._kind(theirs), transformers_for(theirs.model_type), open_safetensors(folder)
        with _quiet(library):
            _check_size(kind, theirs, stored)
        prefix = f"{kind.base_model_prefix}."
        made_for = read_config_values(folder).get("architectures") or ("",)
        # The encoder alone has no prefix.
        has_head = any(name.startswith(prefix) for name in stored.shapes)
        drops_head = new_head and has_head and not _PRETRAINED.search(str(made_for[0]))
        tensors = _read(stored, prefix if drops_head else "")
        with _quiet(library):
            inner, found = kind.from_pretrained(
                None, config=theirs, state_dict=tensors, output_loading_info=True, ignore_mismatched_sizes=True,
                local_files_only=True, dtype=torch.float32,
            )  # fmt: skip
        is_inside = re.compile(f"{re.escape(prefix)}(?!pooler)" if hasattr(inner, prefix[:-1]) else "(?!pooler)")
        # Names alone in version 4 of transformers, with both shapes in version 5.
        other_shapes = sorted(each if isinstance(each, str) else each[0] for each in found["mismatched_keys"])
        new = sorted({*found["missing_keys"], *other_shapes})
        lost = [name for name in new if is_inside.match(name)]
        _check(found["unexpected_keys"], lost, [] if new_head else other_shapes, stored)
        new = cls._used(inner, new)
        model = cls(config, inner)
        model.newly_initialised = tuple(name for name in new if not new_head or name.startswith(prefix))
        if model.newly_initialised:
            warnings.warn(
                f"{folder} has no values for {', '.join(model.newly_initialised)}: they start at random. Train the "
                "model before use.",
                stacklevel=2,
            )
        return model.eval()

    @classmethod
    def _used(cls, inner: nn.Module, new: list[str]) -> list[str]:
        """Of the tensors that are drawn those that are used."""
        return new

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors as transformers does, not whole where that is cut off; other files
        stay."""
        parts = self.theirs.named_modules()
        whole = {f"{name}.weight": part.whole() for name, part in parts if isinstance(part, SomeRows)}
        with _quiet(transformers_for(self.theirs.config.model_type)):
            self.theirs.save_pretrained(folder, state_dict=self.theirs.state_dict() | whole)
        # Those of its owner alone otherwise (see `save_tensors`).
        for path in Path(folder).glob("*.safetensors"):
            path.chmod((Path(folder) / CONFIG_FILE).stat().st_mode)

    @property
    def classifier(self) -> nn.Module:
        """The last module of the head."""
        return cast(nn.Module, self.theirs.classifier)

    def _layers(self) -> tuple[str, nn.ModuleList]:
        """The layers with weights of their own, and their name in `theirs.base_model`."""
        return next((n, part) for n, part in self.theirs.base_model.named_modules() if isinstance(part, nn.ModuleList))

    def layer_matrices(self) -> list[nn.Parameter]:
        """The weight matrices inside the layers."""
        return [cast(nn.Parameter, part.weight) for part in self._layers()[1].modules() if isinstance(part, nn.Linear)]

    def layer_of(self, name: str) -> int | None:
        """See `PretrainedModel.layer_of`. A norm above the layers counts as the last one, the pooler as head; what else
        is inside the encoder as embeddings."""
        base = self.theirs.base_model
        inside = "" if base is self.theirs else f"{self.theirs.base_model_prefix}."
        place, stored = self._layers()
        name, layers = name.removeprefix("theirs."), f"{inside}{place}."
        if name.startswith(layers):
            return 1 + int(name.removeprefix(layers).split(".")[0])
        if name.removeprefix(inside).startswith(_ABOVE_LAYERS):
            return len(stored)
        return 0 if name.startswith(inside) and not name.startswith(f"{inside}pooler.") else None

    def learn_words(self, ids: Tensor) -> None:
        """See `PretrainedModel.learn_words`."""
        # They read padding, too.
        ids = torch.cat([ids, ids.new_tensor([self.config.pad_token_id or 0])])
        self.theirs.set_input_embeddings(learning(self.theirs.get_input_embeddings(), ids))

    def freeze_encoder(self) -> None:
        """Give embeddings and layers no gradient any more; a pooler and the head stay trainable."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(self.layer_of(name) is None)

    def look_at_neighbours(self) -> None:
        """Nothing: a fresh model of theirs starts as transformers starts it."""

    def _outputs(self, batch: PackedBatch, choices: bool = False, **asked: Any) -> tuple[Any, PaddingLayout]:
        """What theirs returns for a batch as a padded rectangle [N, L], and where its tokens are in that."""
        length = batch.max_sequence_length
        if length > self.config.max_position_embeddings:
            raise ModelError(
                f"a sequence of {length} tokens is longer than the {self.config.max_position_embeddings} that the "
                "model reads; cut it, or use a model for longer sequences"
            )
        layout = batch.layout()
        ids = layout.pad(batch.input_ids)  # [N, L]
        mask = torch.ones_like(ids)
        if layout.padding is not None:
            padding = layout.padding.view_as(ids)
            # Some families tell positions by which ids are padding.
            ids, mask = ids.masked_fill(padding, self.config.pad_token_id or 0), mask.masked_fill(padding, 0)
        given = {"input_ids": ids, "attention_mask": mask}
        if self.config.type_vocab_size > 1:
            given["token_type_ids"] = layout.pad(batch.token_type_ids)
        if choices:
            given = {name: values[:, None] for name, values in given.items()}  # [N, 1, L]
        return self.theirs(**given, **asked), layout

    def _of_sequences(self, batch: PackedBatch, choices: bool = False) -> Tensor:
        """The logits of each sequence: [N, C]."""
        return torch.cat([self._outputs(part, choices)[0].logits for part in rectangles(batch)])

    def _of_tokens(
        self, batch: PackedBatch, values: Callable[[Any], Tensor], at: Tensor | None = None, **asked: Any
    ) -> Tensor:
        """What `values` finds for the tokens [N, L, ...] in what theirs returns: [T, ...], or of the places `at`."""
        found = (self._outputs(part, **asked) for part in rectangles(batch))
        flat = torch.cat([_tokens(values(output), layout) for output, layout in found])
        return flat if at is None else flat.index_select(0, at)


class WrappedEncoder(WrappedModel):
    """The encoder without a head."""

    layer: int | None = None
    """Whose output is given, where that is not the last one; 0 for the embeddings."""

    @classmethod
    def _used(cls, inner: nn.Module, new: list[str]) -> list[str]:
        """No pooler, which is left out."""
        if not any(name.startswith("pooler.") for name in new):
            return new
        inner.register_module("pooler", None)
        return [name for name in new if not name.startswith("pooler.")]

    def first_layers(self, count: int) -> Self:
        """The same, which gives the output of this layer."""
        model = type(self)(self.config, self.theirs).eval()
        model.layer = None if count == self.config.num_hidden_layers else count
        return model

    def embedded(self, batch: PackedBatch) -> Tensor:
        """What the first layer reads: [T, H]."""
        return self.first_layers(0).encode(batch).last_hidden_state

    def encode(self, batch: PackedBatch, at: Tensor | None = None, most_at: int | None = None) -> EncoderOutput:
        """last_hidden_state [T, H], or [M, H] of the places `at`, int64 [M]; see `BertModel.encode`."""
        layer = self.layer
        if layer is None:
            return EncoderOutput(self._of_tokens(batch, lambda found: found.last_hidden_state, at))
        of_layer = self._of_tokens(batch, lambda found: found.hidden_states[layer], at, output_hidden_states=True)
        return EncoderOutput(of_layer)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Raises ModelError where another layer than the last one is given."""
        if self.layer is not None:
            raise ModelError("a model of this family is saved with all of its layers; leave --layer out")
        super().save_pretrained(folder)


class WrappedForSequenceClassification(WrappedModel):
    """One label, several labels or numbers for each sequence."""

    kinds = "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING"

    def forward(self, batch: PackedBatch) -> LogitsOutput:
        """logits [N, C]."""
        return LogitsOutput(None, self._of_sequences(batch))


class WrappedForTokenClassification(WrappedModel):
    """A label for each token."""

    kinds = "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING"

    def logits_at(self, batch: PackedBatch, at: Tensor) -> Tensor:
        """Of the places `at`, int64 [M] in [0, T): [M, C]."""
        return self._of_tokens(batch, lambda found: found.logits, at)


class WrappedForQuestionAnswering(WrappedModel):
    """Start and end of an answer in the text."""

    kinds = "MODEL_FOR_QUESTION_ANSWERING_MAPPING"

    def logits_at(self, batch: PackedBatch, at: Tensor) -> Tensor:
        """Of start and end at the places `at`, int64 [M] in [0, T): [M, 2]."""
        return self._of_tokens(batch, lambda found: torch.stack([found.start_logits, found.end_logits], dim=-1), at)


class WrappedForMultipleChoice(WrappedModel):
    """Which of several continuations fits."""

    kinds = "MODEL_FOR_MULTIPLE_CHOICE_MAPPING"

    def forward(self, batch: PackedBatch) -> LogitsOutput:
        """A score a sequence, [N, 1]."""
        return LogitsOutput(None, self._of_sequences(batch, choices=True))


class NotWrapped(PretrainedModel):
    """What is not done here with a model that transformers computes: pretraining, similarity, masked words."""

    config_class = WrappedConfig

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *, new_head: bool = False, **config_changes: Any) -> Self:
        """Raises ModelError."""
        raise ModelError(refusal(Path(folder)))


def refusal(folder: Path) -> str:
    """Why a folder is not pretrained here, and what is done with it."""
    kind = read_config_values(folder).get("model_type")
    return (
        f"{folder} is a model of the type {kind!r}, which can be fine-tuned, compared, asked for its labels and for "
        "vectors here (finetune.run, finetune.predict, finetune.embed, finetune.search), but not pretrained, taught "
        "similarity or asked for masked words; give a BERT for that"
    )


def _read(stored: StoredWeights, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, in float32."""
    names = [name for name in stored.shapes if name.startswith(prefix) and not name.endswith(".position_ids")]
    return {name: stored.read(name).to(torch.float32, copy=True) for name in names}


def _check_size(kind: Any, theirs: Any, stored: StoredWeights) -> None:
    """Refuse a config that asks for far more numbers than the file holds, before memory is taken for them."""
    try:
        with torch.device("meta"):
            asked = sum(parameter.numel() for parameter in kind(theirs).parameters())
    except Exception as error:  # Whatever a damaged value makes of it; the cause stays in the message.
        reason = str(error).strip().split("\n")[0][:200]
        raise ModelError(
            f"transformers cannot make a {kind.__name__} as config.json beside {stored.path} has it "
            f"({type(error).__name__}: {reason}); copy the folder again"
        ) from None
    held = sum(map(math.prod, stored.shapes.values()))
    if asked > 2 * held + _MOST_OF_A_HEAD:
        raise ModelError(
            f"{stored.path} holds {held:,} numbers, and config.json asks for {asked:,}: the two files do not belong "
            "together; copy the folder again"
        )


def _check(unexpected: Iterable[str], lost: list[str], other_shapes: list[str], stored: StoredWeights) -> None:
    """Raise ModelError where the encoder is not that of config.json, or a tensor has another shape."""
    surplus = sorted(name for name in unexpected if _IN_A_LAYER.search(name))
    if lost or surplus:
        what = f"lacks {len(lost)} tensors that" if lost else f"holds {len(surplus)} tensors more than"
        raise ModelError(
            f"{stored.path} {what} config.json asks for, {(lost or surplus)[0]} first: the two files do not belong "
            "together; copy the folder again"
        )
    if other_shapes:
        raise ModelError(
            f"{stored.path}: {other_shapes[0]} has another shape than config.json asks for; copy the folder again"
        )


def rectangles(batch: PackedBatch) -> list[PackedBatch]:
    """Consecutive sequences of a batch, as many together as need no more padding than they have tokens: one long
    sequence would make rows as long of all short ones. Waits for the device where a batch is parted."""
    if batch.num_sequences * batch.max_sequence_length <= 2 * batch.num_tokens:
        return [batch]
    starts, parts = batch.sequence_starts.tolist(), []
    first = longest = 0
    for last, (start, end) in enumerate(pairwise(starts)):
        wider = max(longest, end - start)
        if last > first and (last + 1 - first) * wider > 2 * (end - starts[first]):
            parts.append((first, last, longest))
            first, wider = last, end - start
        longest = wider
    parts.append((first, batch.num_sequences, longest))
    return [_part(batch, starts, *part) for part in parts]


def _part(batch: PackedBatch, starts: list[int], first: int, last: int, longest: int) -> PackedBatch:
    """The sequences from `first` to before `last` of a batch whose sequences begin at `starts`."""
    tokens = slice(starts[first], starts[last])
    ids, types, positions = (values[tokens] for values in (batch.input_ids, batch.token_type_ids, batch.position_ids))
    return PackedBatch(ids, types, positions, batch.sequence_starts[first : last + 1] - starts[first], longest)


def _tokens(values: Tensor, layout: PaddingLayout) -> Tensor:
    """[N, L, ...] -> [T, ...]."""
    flat = values.flatten(0, 1)
    if layout.slots is None or layout.tokens is None:
        return flat
    return gathered(flat, layout.slots, layout.tokens, unread=layout.padding)


@contextmanager
def _quiet(library: ModuleType) -> Iterator[None]:
    """No progress bar and no report of transformers: what is missing is said here."""
    log = library.utils.logging
    verbosity, has_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if has_bars:
            log.enable_progress_bar()
