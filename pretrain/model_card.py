"""README.md of a model folder: what it is, how it came about, how good it is, how to use it. No text and no path."""

import re

from model import BertConfig, parameter_count

from .engine.model_card import metadata, page, table
from .objective import PretrainingObjective, Row
from .settings import PretrainSettings

_SETTINGS = ("budget", "batch_size", "optimizer", "learning_rate", "schedule", "warmup", "weight_decay", "clip_norm",
             "dropout", "precision")  # fmt: skip
_OF_THE_EXAMPLES = ("sequence_length", "masking", "seed")
# How the corpus was prepared, for those who answer for it; the values of a manifest that does not say.
_OF_THE_CORPUS = {"min_documents": 1, "group_column": None}
_TITLE = "A BERT of its own domain"
_USE = """\
```python
from transformers import pipeline

fill = pipeline("fill-mask", model="path/to/this/folder")
print(fill("One word is [MASK] here."))
```"""
_LIMITS = """\
It knows the text it was trained on and little else, and repeats whatever bias and errors that text has. It may have
kept names and phrases of it: who may not read the text should not get the model unasked. It is a start for fine-tuning,
not a source of facts."""


def model_card(
    config: BertConfig, objective: PretrainingObjective, prepared: dict, results: dict, settings: PretrainSettings
) -> str:
    """The model card, with the metadata block that model hubs read.

    Args:
        prepared: the manifest of the prepared corpus.
        results: content of results.json.
        settings: resolved.
    """
    found = results["validation"]
    block = metadata(
        "fill-mask",
        "a BERT of its own domain",
        "held-out documents of the corpus",
        _indexed(objective, found),
        language=_language(prepared),
    )
    sections = {
        "Data": _data(prepared, results),
        "Results": table(("on held-out text", "this model", "baseline"), map(_row, objective.rows(found))),
        "Settings": table(("setting", "value"), _settings(prepared, settings).items()),
        "Use": _USE,
        "Limits": _LIMITS,
    }
    return page(block, _TITLE, _introduction(config, objective, settings), sections)


def _introduction(config: BertConfig, objective: PretrainingObjective, settings: PretrainSettings) -> str:
    start = "from an existing BERT" if settings.init_from else "from scratch"
    return f"""\
{config.num_hidden_layers} layers x {config.hidden_size}, {config.num_attention_heads} heads,
{parameter_count(config):,} parameters, vocabulary {config.vocab_size:,}, sequences of up to
{config.max_position_embeddings} tokens. Pretrained {start} with {objective.learned}."""


def _data(prepared: dict, results: dict) -> str:
    train, validation = prepared["train"], prepared["validation"]
    return f"""\
{train["tokens"]:,} tokens in {train["documents"]:,} documents to learn from, {validation["tokens"]:,} tokens in
{validation["documents"]:,} documents held out. {results["steps"]:,} steps, {results["tokens"]:,} tokens computed,
{results["processes"]} process{"es" if results["processes"] > 1 else ""}."""


def _settings(prepared: dict, settings: PretrainSettings) -> dict:
    chosen = {name: getattr(settings, name) for name in _SETTINGS}
    chosen |= {name: getattr(settings.examples, name) for name in _OF_THE_EXAMPLES}
    return chosen | {name: prepared["identity"].get(name, default) for name, default in _OF_THE_CORPUS.items()}


def _indexed(objective: PretrainingObjective, found: dict) -> list[tuple[str, float]]:
    """What hubs list of the results: those of what is learned first."""
    name = objective.parts[0].name
    kinds = ("loss", "perplexity", "accuracy")
    return [(kind, found[f"{name}_{kind}"]) for kind in kinds if found.get(f"{name}_{kind}") is not None]


def _row(row: Row) -> tuple[str, str, str]:
    """A result and its baseline as cells."""
    form = {"nats": "{:.3f}", "share": "{:.3f}", "count": "{:,.1f}"}[row.unit]
    baseline = "" if row.baseline is None else f"{form.format(row.baseline)} ({row.of})"
    return row.name, form.format(row.value), baseline


def _language(prepared: dict) -> str:
    """The language of the corpus as hubs write it, without a region."""
    code = str(prepared["identity"].get("language")).lower().replace("_", "-").split("-")[0]
    return code if re.fullmatch("[a-z]{2,3}", code) else "und"
