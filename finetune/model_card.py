"""README.md of a fine-tuned model folder: what it learned, how well, how to use it."""

from model import BertConfig

from .report import score
from .settings import FinetuneSettings
from .tasks import Task

_MOST_ROWS = 4
_SETTINGS = ("budget", "batch_size", "optimizer", "learning_rate", "dropout", "metric", "class_weights", "long_text",
             "from_scratch", "precision", "seed")  # fmt: skip


def model_card(
    task: Task, config: BertConfig, results: dict, text_columns: tuple[str, ...], settings: FinetuneSettings
) -> str:
    """The model card, with the metadata block that model hubs read.

    Args:
        results: content of results.json.
    """
    held_out = "test" if results["test"] else "validation"
    what = "pairs of texts" if len(text_columns) > 1 else "texts"
    card = task.card(config, results, held_out, is_pair=len(text_columns) > 1)
    num_seeds = len(results["validation"]["loss"]["seeds"])
    best = results["best_seed"] - settings.seed
    rows = "\n".join(
        f"| {name} | {results[held_out][key]['seeds'][best]:.3f} | {score(results[held_out][key])} |"
        for name, key in list(task.shown.items())[:_MOST_ROWS]
    )
    use = f"```python\n{card.example}\n```"
    if not card.example:
        use = card.instead
    elif settings.long_text != "head":
        use += "\n\nOf long texts this reads the beginning; `python -m finetune.predict` reads them in the manner of\n"
        use += f"training ({settings.long_text})."
    metrics = "\n".join(
        f"    - {{type: {kind}, value: {results[held_out][kind]['seeds'][best]:.4f}}}" for kind in card.metrics
    )
    chosen_settings = "\n".join(f"| {name} | {getattr(settings, name)} |" for name in _SETTINGS)
    library = "library_name: transformers\n" if card.example else ""
    chosen = "best epoch and seed chosen on them" if held_out == "validation" else "they chose nothing"
    return f"""---
{library}pipeline_tag: {card.kind}
tags: [bert, {card.kind}, domain-bert]
model-index:
- name: {card.name}
  results:
  - task: {{type: {card.kind}}}
    dataset: {{type: private, name: {held_out} texts}}
    metrics:
{metrics}
---

# {card.title}

{config.num_hidden_layers} layers x {config.hidden_size}, up to {settings.sequence_length} tokens. Fine-tuned on
{results["rows"]["train"]:,} {what}; measured on {results["rows"][held_out]:,} {held_out} texts ({chosen}).

## Results

| {held_out} | this model | {num_seeds} seed{"s" if num_seeds > 1 else ""} |
|---|---|---|
{rows}

{card.findings}

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
