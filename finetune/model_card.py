"""README.md of a fine-tuned model folder: what it tells apart, how well, how to use it."""

from model import BertConfig

from .report import SHOWN, score
from .settings import FinetuneSettings

_ROWS = dict(list(SHOWN.items())[:4])
_SETTINGS = ("budget", "batch_size", "optimizer", "learning_rate", "dropout", "metric", "class_weights", "long_text",
             "from_scratch", "precision", "seed")  # fmt: skip


def model_card(config: BertConfig, results: dict, text_columns: tuple[str, ...], settings: FinetuneSettings) -> str:
    """The model card, with the metadata block that model hubs read.

    Args:
        results: content of results.json.
    """
    held_out = "test" if results["test"] else "validation"
    what = "pairs of texts" if len(text_columns) > 1 else "texts"
    num_seeds = len(results["validation"]["accuracy"]["seeds"])
    best = results["best_seed"] - settings.seed
    rows = "\n".join(
        f"| {name} | {results[held_out][key]['seeds'][best]:.3f} | {score(results[held_out][key])} |"
        for name, key in _ROWS.items()
    )
    classes = "\n".join(
        f"| {row['label'].replace('|', ' ')} | {row['precision']:.3f} | {row['recall']:.3f} | {row['f1']:.3f} | "
        f"{row['support']:,} |"
        for row in results["per_class"][held_out]
    )
    arguments = '{"text": "One text.", "text_pair": "Another."}' if len(text_columns) > 1 else '"One text."'
    use = f"""```python
from transformers import pipeline

classify = pipeline("text-classification", model="path/to/this/folder", top_k=None)
print(classify({arguments}, truncation=True))
```"""
    if config.classifier_hidden_layers:
        use = "Its head has hidden layers that `transformers` does not know: use `python -m finetune.predict`."
    elif settings.long_text != "head":
        use += "\n\nOf long texts this reads the beginning; `python -m finetune.predict` reads them in the manner of\n"
        use += f"training ({settings.long_text})."
    metrics = "\n".join(
        f"    - {{type: {kind}, value: {results[held_out][kind]['seeds'][best]:.4f}}}"
        for kind in ("accuracy", "macro_f1")
    )
    chosen_settings = "\n".join(f"| {name} | {getattr(settings, name)} |" for name in _SETTINGS)
    library = "" if config.classifier_hidden_layers else "library_name: transformers\n"
    chosen = "best epoch and seed chosen on them" if held_out == "validation" else "they chose nothing"
    return f"""---
{library}pipeline_tag: text-classification
tags: [bert, text-classification, domain-bert]
model-index:
- name: a classifier of a domain
  results:
  - task: {{type: text-classification}}
    dataset: {{type: private, name: {held_out} texts}}
    metrics:
{metrics}
---

# A classifier of {what} in {config.num_labels} classes

{config.num_hidden_layers} layers x {config.hidden_size}, up to {settings.sequence_length} tokens. Fine-tuned on
{results["rows"]["train"]:,} {what}; measured on {results["rows"][held_out]:,} {held_out} texts ({chosen}).

## Results

| {held_out} | this model | {num_seeds} seed{"s" if num_seeds > 1 else ""} |
|---|---|---|
{rows}

Always the most frequent class: accuracy {results["majority"][held_out]:.3f}.

| class | precision | recall | F1 | texts |
|---|---|---|---|---|
{classes}

## Settings

| setting | value |
|---|---|
{chosen_settings}

## Use

{use}

## Limits

It judges texts like those it was trained on; on others its probabilities mean little. It repeats whatever bias its
labels have. Its probabilities can betray whether a text was among those it learned from.
"""
