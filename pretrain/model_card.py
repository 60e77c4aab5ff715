"""README.md of a model folder: what it is, how it came about, how good it is, how to use it. No text and no path."""

import re
from collections.abc import Iterable, Sequence

from model import BertConfig, parameter_count

from .objective import PretrainingObjective, Row
from .settings import PretrainSettings

_SETTINGS = ("budget", "batch_size", "optimizer", "learning_rate", "schedule", "warmup", "weight_decay", "clip_norm",
             "dropout", "precision")  # fmt: skip

_OF_THE_CORPUS = {"min_documents": 1, "group_column": None}


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
    rows = [_row(row) for row in objective.rows(found)]
    train, validation = prepared["train"], prepared["validation"]
    examples = settings.examples
    chosen = {name: getattr(settings, name) for name in _SETTINGS}
    chosen |= {"sequence_length": examples.sequence_length, "masking": examples.masking, "seed": examples.seed}
    # How the corpus was prepared, for those who answer for it.
    chosen |= {name: prepared["identity"].get(name, default) for name, default in _OF_THE_CORPUS.items()}
    start = "from an existing BERT" if settings.init_from else "from scratch"
    return f"""---
library_name: transformers
pipeline_tag: fill-mask
language: "{_language(prepared)}"
tags: [bert, fill-mask, domain-bert]
model-index:
- name: a BERT of its own domain
  results:
  - task: {{type: fill-mask}}
    dataset: {{type: private, name: held-out documents of the corpus}}
    metrics:
{_lines("    - {{type: {0}, value: {1:.4f}}}", _indexed(objective, found))}
---

# A BERT of its own domain

{config.num_hidden_layers} layers x {config.hidden_size}, {config.num_attention_heads} heads,
{parameter_count(config):,} parameters, vocabulary {config.vocab_size:,}, sequences of up to
{config.max_position_embeddings} tokens. Pretrained {start} with {objective.learned}.

## Data

{train["tokens"]:,} tokens in {train["documents"]:,} documents to learn from, {validation["tokens"]:,} tokens in
{validation["documents"]:,} documents held out. {results["steps"]:,} steps, {results["tokens"]:,} tokens computed,
{results["processes"]} process{"es" if results["processes"] > 1 else ""}.

## Results

| on held-out text | this model | baseline |
|---|---|---|
{_lines("| {0} | {1} | {2} |", rows)}

## Settings

| setting | value |
|---|---|
{_lines("| {0} | {1} |", chosen.items())}

## Use

```python
from transformers import pipeline

fill = pipeline("fill-mask", model="path/to/this/folder")
print(fill("One word is [MASK] here."))
```

## Limits

It knows the text it was trained on and little else, and repeats whatever bias and errors that text has. It may have
kept names and phrases of it: who may not read the text should not get the model unasked. It is a start for fine-tuning,
not a source of facts.
"""


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


def _lines(form: str, rows: Iterable[Sequence]) -> str:
    """The rows in this form, a line each."""
    return "\n".join(form.format(*row) for row in rows)
