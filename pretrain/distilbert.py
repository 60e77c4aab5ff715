"""A BERT as a DistilBERT of transformers. `python -m pretrain.distilbert --model DIR --out DIR`"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.console import command_line
from data_prep.console.screen import say
from data_prep.durable import write_text
from data_prep.vocabulary.wordpiece import WordPieceTokenizer

from .engine.settings import PretrainError

if TYPE_CHECKING:
    from torch import Tensor

    from model import BertConfig, BertForMaskedLM

# The only one that DistilBERT computes with.
_LAYER_NORM_EPS = 1e-12
# Names in a BERT of transformers -> names in its DistilBERT; the layers of both are numbered alike.
_MODULES = {
    "bert.embeddings.word_embeddings": "distilbert.embeddings.word_embeddings",
    "bert.embeddings.position_embeddings": "distilbert.embeddings.position_embeddings",
    "bert.embeddings.LayerNorm": "distilbert.embeddings.LayerNorm",
    "cls.predictions": "vocab_projector",
    "cls.predictions.transform.dense": "vocab_transform",
    "cls.predictions.transform.LayerNorm": "vocab_layer_norm",
}
_LAYER, _THEIR_LAYER = "bert.encoder.layer.", "distilbert.transformer.layer."
_LAYER_MODULES = {
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}


@dataclass(frozen=True)
class DistilBertSettings:
    """Settings of `python -m pretrain.distilbert`."""

    model: str = "runs/builtin/final"
    """Folder of the BERT: final/ of a run, a checkpoint, or one of transformers."""
    out: str = "distilbert"
    """Folder to write, which is not there yet."""


def to_distilbert(folder: str | Path, out: str | Path) -> None:
    """Write the BERT of a folder as a `DistilBertForMaskedLM` of transformers, with its tokenizer.

    DistilBERT has no token types. That of the first segment is added to the position embeddings: the scores of single
    texts are the same up to rounding. (In the word embeddings it would change the output matrix, which is the same
    tensor.) Pooler and NSP head have no place there.

    Raises:
        PretrainError, PrepError: the folder holds no BERT with an MLM head, or one that DistilBERT cannot be, or `out`
            is there already.
    """
    from model.huggingface import save_tensors

    from .engine.checkpoint import num_bytes
    from .engine.folder import require_embeddings, whole_folder

    if Path(out).exists():
        raise PretrainError(f"{out} is there already: give another --out")
    model, tokenizer = open_bert(folder), WordPieceTokenizer.load(folder)
    require_embeddings(folder, tokenizer.vocab_size, model.config.vocab_size, PretrainError)
    tensors = renamed(model)
    with whole_folder(Path(out), num_bytes(tensors.values())) as temporary:
        save_tensors(tensors, temporary / "model.safetensors")
        write_text(temporary / "config.json", json.dumps(config_of(model.config), indent=2, sort_keys=True) + "\n")
        tokenizer.save(temporary, model.config.max_position_embeddings)
        without_types(temporary / "tokenizer_config.json")


def open_bert(folder: str | Path) -> "BertForMaskedLM":
    """A BERT with an MLM head that DistilBERT can be.

    Raises:
        PretrainError: there is none in the folder.
    """
    from model.families import BERT

    from .engine.folder import family_of, open_model

    if family_of(folder, PretrainError) is not BERT:
        raise PretrainError(f"{folder} is of another family than BERT: only a BERT can be a DistilBERT")
    model = open_model(BERT.masked_lm, folder, PretrainError)
    if model.newly_initialised:
        raise PretrainError(f"{folder} has not learned to fill masks: give a pretrained model, not a classifier")
    if model.config.layer_norm_eps != _LAYER_NORM_EPS:
        raise PretrainError(
            f"{folder} has layer_norm_eps {model.config.layer_norm_eps:g}, and DistilBERT always uses "
            f"{_LAYER_NORM_EPS:g}, so its scores would differ: give a model with {_LAYER_NORM_EPS:g}"
        )
    return model


def renamed(model: "BertForMaskedLM") -> "dict[str, Tensor]":
    """The tensors of a BERT under the names of DistilBERT, the token type of the first segment in the positions."""
    from model.huggingface import to_huggingface

    tensors = to_huggingface(model)
    types = tensors.pop("bert.embeddings.token_type_embeddings.weight")
    positions = "bert.embeddings.position_embeddings.weight"
    tensors[positions] = tensors[positions] + types[0]
    return {_name(name): tensor for name, tensor in tensors.items()}


def _name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if not module.startswith(_LAYER):
        return f"{_MODULES[module]}.{kind}"
    number, _, part = module.removeprefix(_LAYER).partition(".")
    return f"{_THEIR_LAYER}{number}.{_LAYER_MODULES[part]}.{kind}"


def config_of(config: "BertConfig") -> dict[str, Any]:
    """The config.json of a DistilBERT of the sizes of a BERT."""
    return {
        "model_type": "distilbert",
        "architectures": ["DistilBertForMaskedLM"],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "sinusoidal_pos_embds": False,
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "hidden_dim": config.intermediate_size,
        "activation": config.hidden_act,
        "dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
        "initializer_range": config.initializer_range,
        "pad_token_id": config.pad_token_id,
        "tie_word_embeddings": True,
    }


def without_types(path: Path) -> None:
    """Let a tokenizer of transformers give no token types, which DistilBERT does not take."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model_input_names"] = ["input_ids", "attention_mask"]
    write_text(path, json.dumps(config, indent=2) + "\n")


def run(settings: DistilBertSettings) -> None:
    """`python -m pretrain.distilbert`."""
    from .engine.folder import require_made

    require_made(settings.model, DistilBertSettings.model, "pretrain.run")
    to_distilbert(settings.model, settings.out)
    say(
        f"{settings.out} holds a DistilBertForMaskedLM of transformers, which scores single texts as {settings.model} "
        "does. It knows no second segment, and has neither pooler nor NSP head."
    )


def main(argv: Iterable[str] | None = None) -> int:
    return command_line.main(
        DistilBertSettings,
        run,
        prog="python -m pretrain.distilbert",
        description="Write a BERT as a DistilBERT of transformers.",
        examples="python -m pretrain.distilbert --model runs/student/final --out distilbert",
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
