"""A discriminator and its generator, which share their embeddings: what the pretraining of an ELECTRA trains."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from torch import Tensor, nn

from .batch import PackedBatch, in_recurring_rows
from .config import BertConfig, ModelError
from .electra import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, ElectraModel
from .electra_names import ELECTRA_NAMES
from .huggingface import CONFIG_FILE, PretrainedModel
from .names import TensorNames

GENERATOR = "generator"
"""The folder of the generator, in that of its discriminator."""

_LEAST_WIDTH, _HEAD = 64, 64
_SHARED_SIZES = ("vocab_size", "embedding_size", "max_position_embeddings", "type_vocab_size")


def generator_config(config: BertConfig) -> BertConfig:
    """The config of a generator for a discriminator: as deep, a quarter as wide, in whole heads of 64, of which it has
    at least one. Embeddings stay as they are.

    Clark et al. (2020, section 3.2 and appendix A) take a quarter for their small and large model; for base a third,
    256 units, which are 192 here.
    """
    width = min(config.hidden_size, max(_LEAST_WIDTH, config.hidden_size // 4 // _HEAD * _HEAD))
    return config.changed(
        hidden_size=width,
        num_attention_heads=max(1, width // _HEAD),
        intermediate_size=max(1, config.intermediate_size * width // config.hidden_size),
        id2label=None,
        num_labels=2,
    )


class DiscriminatorAndGenerator(PretrainedModel):
    """Both models of an ELECTRA as one: they share the embeddings of words, positions and types with their LayerNorm;
    layers, heads and what leads from the embeddings to the layers are each model's own.

    Its folder is that of the discriminator, and holds the folder of the generator.

    Args:
        config: of the discriminator.
        discriminator, generator: fresh ones where they are not given.
    """

    config_class: ClassVar[type[BertConfig]] = ElectraConfig
    names: ClassVar[TensorNames] = ELECTRA_NAMES

    def __init__(
        self,
        config: BertConfig,
        discriminator: ElectraForPreTraining | None = None,
        generator: ElectraForMaskedLM | None = None,
    ) -> None:
        super().__init__(config)
        self.discriminator = ElectraForPreTraining(config) if discriminator is None else discriminator
        self.generator = ElectraForMaskedLM(generator_config(config)) if generator is None else generator
        self.generator.bert.embeddings.share(self.bert.embeddings)

    @property
    def bert(self) -> ElectraModel:
        """The encoder of the discriminator."""
        return cast(ElectraModel, self.discriminator.bert)

    @property
    def shape(self) -> str:
        """For people: "4 layers x 256 with a generator of 4 layers x 64"."""
        return f"{self.config.shape} with a generator of {self.generator.config.shape}"

    @property
    def num_bytes(self) -> int:
        """Of both models: the embeddings that they share are in either folder."""
        return self.discriminator.num_bytes + self.generator.num_bytes

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *, new_head: bool = False, **config_changes: Any) -> Self:
        """Both models of a discriminator's folder; one without a generator gets a fresh one, which is listed in
        `newly_initialised`. The embeddings are the discriminator's.

        Raises ModelError as PretrainedModel does, and where the two models do not belong together.
        """
        discriminator = ElectraForPreTraining.from_pretrained(folder, new_head=new_head, **config_changes)
        inside, missing = Path(folder) / GENERATOR, discriminator.newly_initialised
        if (inside / CONFIG_FILE).is_file():
            generator = ElectraForMaskedLM.from_pretrained(inside, **config_changes)
            _check_sizes(inside, generator.config, discriminator.config)
            missing += generator.newly_initialised
        else:
            generator = ElectraForMaskedLM(generator_config(discriminator.config))
            missing += (GENERATOR, *_head_tensors(generator))
        made = cls(discriminator.config, discriminator, generator)
        made.newly_initialised = missing
        return made.eval()

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder of the discriminator, and in it that of the generator."""
        place, inside = self.folders(Path(folder))
        self.discriminator.save_pretrained(place)
        self.generator.save_pretrained(inside)

    def folders(self, folder: Path) -> list[Path]:
        """That of the discriminator, then that of the generator."""
        return [folder, folder / GENERATOR]

    def remade(self, **config_changes: Any) -> Self:
        """Fresh models of the same sizes, but for these fields of both configs."""
        generator = ElectraForMaskedLM(self.generator.config.changed(**config_changes))
        return type(self)(self.config.changed(**config_changes), generator=generator)

    def of_layers(self, numbers: Sequence[int]) -> Self:
        """A discriminator of some of its layers, counted from 0, with a copy of everything else, and the generator as
        it is."""
        fewer = self.discriminator.of_layers(numbers)
        return type(self)(fewer.config, fewer, self.generator)

    def look_at_neighbours(self) -> None:
        """Of both models, whose positions are the same."""
        self.discriminator.look_at_neighbours()
        self.generator.look_at_neighbours()

    def layer_matrices(self) -> list[nn.Parameter]:
        """The weight matrices inside the layers of both models."""
        return self.discriminator.layer_matrices() + self.generator.layer_matrices()

    def vocabulary_parameters(self) -> list[Tensor]:
        """Those with a row for each entry of the vocabulary: the word embedding, the bias of the generator's head."""
        return [self.bert.embeddings.word.weight, self.generator.mlm_head.bias]

    def masked_scores(self, batch: PackedBatch, masked_positions: Tensor, most_masked: int | None = None) -> Tensor:
        """The generator's logits [M, V] at the masked positions.

        Args:
            masked_positions: int64 [M], token indices in [0, T), each once.
            most_masked: upper bound on their number in one sequence; max_sequence_length if None.
        """
        encoded = self.generator.bert.encode(batch, at=masked_positions, most_at=most_masked)
        return self.generator.word_scores(encoded.last_hidden_state)

    def replaced_scores(self, batch: PackedBatch) -> Tensor:
        """The discriminator's log odds [T] that each token was replaced."""
        return in_recurring_rows(self.discriminator.rtd_head, self.bert.encode(batch).last_hidden_state)


def _head_tensors(model: PretrainedModel) -> list[str]:
    """The names there of the parameters outside of the encoder."""
    own = [name for name, _ in model.named_parameters() if not name.startswith("bert.")]
    return [theirs for name in own for theirs in model.names.of(name)]


def _check_sizes(folder: Path, generator: BertConfig, discriminator: BertConfig) -> None:
    for name in _SHARED_SIZES:
        if getattr(generator, name) != getattr(discriminator, name):
            raise ModelError(
                f"{folder} has a {name} of {getattr(generator, name)}, and its discriminator one of "
                f"{getattr(discriminator, name)}, and they share their embeddings; take the two of one run, or remove "
                f"{folder} to begin with a fresh generator"
            )
