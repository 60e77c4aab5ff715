"""README.md of a fine-tuned model folder: what it learned, how well, how to use it."""

from typing import Any

from model import BertConfig
from pretrain.engine.model_card import metadata, page, table

from .report import number, score
from .settings import FinetuneSettings
from .tasks import Card, Task

_MOST_ROWS = 4
_SETTINGS = ("budget", "batch_size", "optimizer", "learning_rate", "dropout", "metric", "class_weights", "long_text",
             "from_scratch", "precision")  # fmt: skip
_LIMITS = """\
It judges texts like those it was trained on; on others its probabilities mean little. It repeats whatever bias its
labels have. Its probabilities can betray whether a text was among those it learned from."""


def model_card(
    task: Task, config: BertConfig, results: dict, text_columns: tuple[str, ...], settings: FinetuneSettings
) -> str:
    """The model card, with the metadata block that model hubs read.

    Args:
        results: content of results.json.
    """
    split, is_pair = "test" if results["test"] else "validation", len(text_columns) > 1
    card = task.card(config, results, split, is_pair)
    scores, best = results[split], results["best_seed"] - settings.seed
    metrics = [(name, value) for name in card.metrics if (value := scores[name]["seeds"][best]) is not None]
    sections = {
        "Results": f"{_scores(task, scores, split, best, results['baselines'])}\n\n{card.findings}",
        "Settings": table(("setting", "value"), [*_settings(settings).items(), ("seed", results["best_seed"])]),
        "Use": _use(card, settings),
        "Limits": _LIMITS,
    }
    block = metadata(
        card.kind, card.name, f"{split} texts", metrics, library=bool(card.example), family=config.family_name
    )
    return page(block, card.title, _introduction(config, results, split, is_pair, settings), sections)


def _settings(settings: FinetuneSettings) -> dict[str, Any]:
    """Those that are shown."""
    names = _SETTINGS if settings.teacher is None else (*_SETTINGS, "teacher_weight")
    return {name: getattr(settings, name) for name in names}


def _introduction(config: BertConfig, results: dict, split: str, is_pair: bool, settings: FinetuneSettings) -> str:
    rows, what = results["rows"], "pairs of texts" if is_pair else "texts"
    chosen = "best epoch and seed chosen on them" if split == "validation" else "they chose nothing"
    return f"""\
{config.shape}, up to {settings.sequence_length} tokens. Fine-tuned on
{rows["train"]:,} {what}; measured on {rows[split]:,} {split} texts ({chosen})."""


def _scores(task: Task, scores: dict, split: str, best: int, baselines: dict) -> str:
    """The scores of the best seed, of all, and of what learned without a BERT."""
    seeds = len(scores["loss"]["seeds"])
    rows = [
        (
            name,
            number(scores[key]["seeds"][best]),
            score(scores[key]),
            *(score(b[split][key]) for b in baselines.values()),
        )
        for name, key in list(task.shown.items())[:_MOST_ROWS]
    ]
    return table((split, "this model", f"{seeds} seed{'s' if seeds > 1 else ''}", *baselines), rows)


def _use(card: Card, settings: FinetuneSettings) -> str:
    if not card.example:
        return card.instead
    use = f"```python\n{card.example}\n```"
    if settings.long_text == "head":
        return use
    return f"""{use}

Of long texts this reads the beginning; `python -m finetune.predict` reads them in the manner of
training ({settings.long_text})."""
