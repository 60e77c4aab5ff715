"""What a person sees of a pretraining: results beside their baselines, curves, warnings, the model card."""

import math
import re
from collections.abc import Callable, Sequence
from itertools import cycle, groupby, pairwise
from pathlib import Path

from data_prep.durable import replaced
from model import BertConfig, parameter_count

from .engine.model_card import metadata, page, table
from .engine.progress import clock
from .objective import PretrainingObjective, Row
from .resolve import PARAMETERS_A_TOKEN
from .settings import PretrainSettings

FORMS = {"nats": "{:.3f}", "share": "{:.1%}", "count": "{:,.0f}", "number": "{:.3f}"}


def results_table(rows: Sequence[Row], results: dict) -> str:
    """The held-out results of a finished run beside their baselines, as text.

    Args:
        results: content of results.json.
    """
    lines = [f"{'held-out text':<22}{'this model':>12}   baseline"]
    for row in rows:
        form = FORMS[row.unit]
        baseline = "" if row.baseline is None else f"{form.format(row.baseline)}  {row.of}"
        lines.append(f"{row.name:<22}{form.format(row.value):>12}   {baseline}")
    lines.append(f"{results['steps']:,} steps, {results['tokens']:,} tokens in {clock(results['seconds'])}")
    return "\n".join(lines)


_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")
_FIRST, _LATER = {"marker": "o", "ms": 3}, {"marker": "o", "ms": 3, "linestyle": "--"}
# Of a point that belongs to no line.
_ALONE = {"marker": "D", "linestyle": "", "markerfacecolor": "none"}


def draw_curves(rows: list[dict], objective: PretrainingObjective, path: Path) -> None:
    """Draw the rows of metrics.jsonl; the picture is replaced as a whole."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    training = [row for row in rows if "learning_rate" in row]
    held_out = [row for row in rows if "validation" in row]
    if not held_out:
        return
    # Evaluations on other examples are no points of one line: the last takes more, those of another length others.
    lines = [list(some) for _, some in groupby(held_out, key=lambda row: objective.baselines(row["validation"]))]
    styles = [("", _FIRST), *(_style(before[-1], some) for before, some in pairwise(lines))]
    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy = figure.subplots(1, 2)
    last = held_out[-1]["validation"]
    for part, colour in zip(objective.parts, cycle(_COLOURS)):
        name, label = part.name, part.name.upper()
        if f"{name}_loss" not in last:
            continue
        pale = [row.get(f"{name}_loss", math.nan) for row in training]
        loss.plot([row["tokens"] for row in training], pale, color=colour, alpha=0.3, lw=1)
        for axes, measure, scale in ((loss, "loss", 1), (accuracy, "accuracy", 100)):
            if f"{name}_{measure}" not in last:
                continue
            for some, (more, style) in zip(lines, styles, strict=True):
                # An evaluation has no result of a part where none of its examples has a target.
                values = [scale * row["validation"].get(f"{name}_{measure}", math.nan) for row in some]
                axes.plot([row["tokens"] for row in some], values, color=colour, label=label + more, **style)
            if baseline := part.baselines.get(measure):
                level = scale * last[baseline]
                axes.axhline(level, color=colour, linestyle=":", label=baseline.replace("_", " "))
    for axes, title in ((loss, "loss (nats; pale: training)"), (accuracy, "held-out accuracy (%)")):
        axes.set(title=title, xlabel="tokens seen")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    with replaced(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _style(before: dict, line: list[dict]) -> tuple[str, dict]:
    """What follows the name of a later line, and how it is drawn.

    Args:
        before: the evaluation before its first.
    """
    style = _ALONE if len(line) == 1 else _LATER
    length = line[0].get("sequence_length")
    # Runs of older versions do not say how long their examples were.
    if length == before.get("sequence_length") and (length or len(line) == 1):
        return ", more text", style
    return f", {length} tokens" if length else ", longer", style


# Fewer steps leave a model where it began.
_FEWEST_STEPS = 60


class Trouble:
    """Looks at each held-out evaluation of a pretraining and says every kind of trouble once.

    Args:
        objective: says what the troubles of its parts are.
        used: gives the share of the budget that is used.
    """

    def __init__(self, objective: PretrainingObjective, used: Callable[[], float]):
        self.objective, self.used = objective, used
        self._said: set[str] = set()

    def found(self, rows: Sequence[dict]) -> list[str]:
        """Sentences about the newest evaluation.

        Args:
            rows: of metrics.jsonl.
        """
        warnings = self.objective.warnings(_comparable(rows), self.used())
        new = {kind: sentence for kind, sentence in warnings.items() if kind not in self._said}
        self._said |= new.keys()
        return list(new.values())


def _comparable(rows: Sequence[dict]) -> list[dict]:
    """The newest evaluation and those before it since the learning rate last rose, as it does again where a budget has
    grown: with the rate the loss rises, too."""
    rates = [(place, row["learning_rate"]) for place, row in enumerate(rows) if "learning_rate" in row]
    risen = max((place for (_, before), (place, rate) in pairwise(rates) if rate > before), default=0)
    found = [(place, row) for place, row in enumerate(rows) if "validation" in row]
    return [row for place, row in found[:-1] if place > risen] + [row for _, row in found[-1:]]


def too_large(parameters: int, tokens: int) -> str | None:
    """A sentence where a fresh model is large for the tokens of its corpus."""
    if parameters <= PARAMETERS_A_TOKEN * tokens:
        return None
    return (
        f"Warning: the model has {parameters:,} parameters for {tokens:,} tokens of text, and may learn it by heart: "
        "take a smaller --preset, give more text, or continue from an existing BERT with --init-from."
    )


def too_many(settings: PretrainSettings, tokens: int) -> str | None:
    """A sentence where a step reads more than all of the text.

    Args:
        settings: with batch sizes.
        tokens: of the text.
    """
    for _, part in settings.phases:
        size, length = part.batch_size, part.examples.longest
        if size * length > tokens:
            return (
                f"Warning: a step of {size:,} examples of up to {length} tokens reads all {tokens:,} tokens of the text"
                f" {size * length / tokens:,.1f} times: take a smaller --batch-size."
            )
    return None


def too_short(steps: float, is_timed: bool) -> str | None:
    """A sentence where a budget is too small to learn anything in from nothing; a timed one has more smaller steps."""
    if steps >= _FEWEST_STEPS:
        return None
    smaller = ", or a smaller --preset, which makes more steps of the same time" if is_timed else ""
    return (
        f"Warning: about {steps:,.0f} steps are too few to learn much more than word frequencies: give a longer "
        f"--budget{smaller}."
    )


def change_of_length(before: int, length: int, batch_size: int) -> str:
    """A sentence where the examples get longer, or where a larger budget has more of the shorter ones."""
    why = "The larger budget has more of the shorter examples. " if length < before else ""
    return f"{why}From here on the examples have up to {length} tokens, {batch_size} of them a step."


def not_reached(length: int) -> str:
    """A warning where a budget is too small for one of several lengths of examples."""
    return (
        f"Warning: the budget has no step for examples of up to {length} tokens, so nothing is learned of positions "
        "that only they have: give a longer --budget or other --length-shares."
    )


def no_time(budget: str, seconds: float, reserve: float, a_step: float, may_be_smaller: bool) -> str:
    """A sentence about a budget of time that is used up before the first step.

    Args:
        seconds: that passed before the first step.
        reserve: seconds that are kept for the end.
        a_step: seconds that a step takes.
        may_be_smaller: whether the size of the model can be chosen.
    """
    enough = seconds + reserve + _FEWEST_STEPS * a_step
    given = f"{math.ceil(enough)}s" if enough < 90 else f"{math.ceil(enough / 60)}m"
    smaller = ", or a smaller --preset" if may_be_smaller else ""
    return (
        f"--budget {budget} is used up before the first step: making the model and measuring its speed took "
        f"{clock(seconds)}, and {clock(reserve)} are kept for the last evaluation and checkpoint: give --budget "
        f"{given} or more{smaller}"
    )


_SETTINGS = ("budget", "batch_size", "optimizer", "learning_rate", "schedule", "warmup", "weight_decay", "adam_beta2",
             "clip_norm", "dropout", "precision", "packing", "mask_share", "softmax", "muon_matrices")  # fmt: skip
_OF_A_TEACHER = ("teacher_weights", "teacher_positions")
_OF_THE_EXAMPLES = ("sequence_length", "masking", "seed")
# How the corpus was prepared, for those who answer for it; the values of a manifest that does not say.
_OF_THE_CORPUS = {"min_documents": 1, "group_column": None}
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
    found, title = results["validation"], _title(config)
    block = metadata(
        objective.hub_task,
        f"{title[0].lower()}{title[1:]}",
        "held-out documents of the corpus",
        _indexed(objective, found),
        language=_language(prepared),
        family=config.family_name,
    )
    sections = {
        "Data": _data(prepared, results),
        "Results": table(("on held-out text", "this model", "baseline"), map(_row, objective.rows(found))),
        "Settings": table(("setting", "value"), _settings(prepared, settings, objective).items()),
        "Use": objective.use,
        "Limits": _LIMITS,
    }
    return page(block, title, _introduction(config, objective, settings), sections)


def _title(config: BertConfig) -> str:
    article = "An" if config.called[0] in "AEIOU" else "A"
    return f"{article} {config.called} of its own domain"


def _introduction(config: BertConfig, objective: PretrainingObjective, settings: PretrainSettings) -> str:
    of = "" if settings.keep_layers in ("auto", "all") else "layers of "
    start = f"from {of}an existing {config.called}" if settings.starts_from else "from scratch"
    not_trained = "".join(
        f" The weights that only {part.learned} would train are those that it began with." for part in objective.off
    )
    return f"""\
{config.shape}, {config.num_attention_heads} heads,
{parameter_count(config):,} parameters, vocabulary {config.vocab_size:,}, sequences of up to
{config.max_position_embeddings} tokens. Pretrained {start} with {objective.learned}.{not_trained}"""


def _data(prepared: dict, results: dict) -> str:
    train, validation = prepared["train"], prepared["validation"]
    return f"""\
{train["tokens"]:,} tokens in {train["documents"]:,} documents to learn from, {validation["tokens"]:,} tokens in
{validation["documents"]:,} documents held out. {results["steps"]:,} steps, {results["tokens"]:,} tokens computed,
{_processes(results)}."""


def _processes(results: dict) -> str:
    """How many shared the steps, in all parts of the run."""
    # Runs that an older version began do not say it of each part.
    found = sorted({each.get("processes", results["processes"]) for each in results["machines"]})
    return f"{' to '.join(map(str, dict.fromkeys((found[0], found[-1]))))} process{'es' if found[-1] > 1 else ''}"


def _settings(prepared: dict, settings: PretrainSettings, objective: PretrainingObjective) -> dict:
    chosen = {name: getattr(settings, name) for name in _SETTINGS}
    chosen |= {name: getattr(settings.examples, name) for name in _OF_THE_EXAMPLES}
    chosen |= {"length_shares": settings.length_shares} if settings.length_shares else {}
    chosen |= {"shifted_share": settings.shifted_share} if len(settings.examples.lengths) > 1 else {}
    chosen |= {"keep_layers": settings.keep_layers} if settings.starts_from else {}
    for part in (part for part in objective.parts if part.needs_pairs):
        chosen |= {"pair_weight": part.weight, "pair_rate": part.rate}
    chosen |= {name: getattr(settings, name) for name in _OF_A_TEACHER} if settings.teacher else {}
    chosen = {name: ", ".join(map(str, given)) if isinstance(given, tuple) else given for name, given in chosen.items()}
    chosen |= {name: prepared["identity"].get(name, default) for name, default in _OF_THE_CORPUS.items()}
    return {name: "none" if given is None else given for name, given in chosen.items()}


def _indexed(objective: PretrainingObjective, found: dict) -> list[tuple[str, float]]:
    """What hubs list of the results: those of what is learned first."""
    name = objective.parts[0].name
    kinds = ("loss", "perplexity", "accuracy")
    return [(kind, found[f"{name}_{kind}"]) for kind in kinds if found.get(f"{name}_{kind}") is not None]


def _row(row: Row) -> tuple[str, str, str]:
    """A result and its baseline as cells."""
    form = {"nats": "{:.3f}", "share": "{:.3f}", "count": "{:,.1f}", "number": "{:.3f}"}[row.unit]
    baseline = "" if row.baseline is None else f"{form.format(row.baseline)} ({row.of})"
    return row.name, form.format(row.value), baseline


def _language(prepared: dict) -> str:
    """The language of the corpus as hubs write it, without a region."""
    code = str(prepared["identity"].get("language")).lower().replace("_", "-").split("-")[0]
    return code if re.fullmatch("[a-z]{2,3}", code) else "und"
