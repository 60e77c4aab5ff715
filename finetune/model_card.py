"""README.md of a fine-tuned model folder: what it tells apart, how well, how to use it."""

from model import BertConfig

from .report import SHOWN, score
from .settings import FinetuneSettings

_ROWS = dict(list(SHOWN.items())[:4])


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
    library = "" if config.classifier_hidden_layers else "library_name: transformers\n"
    chosen = "best epoch and seed chosen on them" if held_out == "validation" else "they chose nothing"
    return f"""---
{library}pipeline_tag: text-classification
tags: [bert, text-classification, domain-bert]
---

# A classifier of {what} in {config.num_labels} classes

{config.num_hidden_layers} layers x {config.hidden_size}, up to {settings.sequence_length} tokens. Fine-tuned on
{results["rows"]["train"]:,} {what}; measured on {results["rows"][held_out]:,} {held_out} texts ({chosen}).

| {held_out} | this model | {num_seeds} seed{"s" if num_seeds > 1 else ""} |
|---|---|---|
{rows}

| class | precision | recall | F1 | texts |
|---|---|---|---|---|
{classes}

{use}

It judges texts like those it was trained on; on others its probabilities mean little.
"""
