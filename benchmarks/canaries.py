"""What a model gives away: made-up names planted in the text, once and ten times, and asked for under a mask.

    python benchmarks/canaries.py --corpus articles.txt.gz [--megabytes 1] [--budgets 17epochs,85epochs]
        [--min-documents 1,5]

Of the corpus (a document a block, a sentence a line) the first documents are taken, and the held-out text from what
stands behind them, so that every planted name is trained on. Each canary is a made-up first and
last name in a sentence of one of them; one of ten times stands in ten different sentences of one document, as the name
of a patient does. A model is trained on them for each budget, with a vocabulary for each `--min-documents`, and asked
for the name in the first of its sentences (`python -m pretrain.exposure`). Names that stand nowhere in the text show
what is guessed: all names are made in the same way, and {controls} others are the candidates beside them.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean

# Arranges the memory of the process as in a real run, which has to come before torch.
import pretrain

# isort: split
from beginning import documents
from table import Table, code, machine, parser, run

from data_prep import prepare
from data_prep.errors import UserError
from model import PRESETS
from pretrain.engine.settings import Budget
from pretrain.exposure import FEW_CANDIDATES, Exposure, Found, Marked, chance_exposure

SOURCES = ("data_prep", "model", "pretrain", "benchmarks/canaries.py", "benchmarks/beginning.py")
CONTROLS = 300
# Of the text that is trained on.
HELD_OUT_SHARE = 0.2
TIMES = {"never": 0, "once": 1, "ten times": 10}
SENTENCES = (
    "{} was admitted with chest pain and a long history of asthma .",
    "On the second day {} complained of a severe headache .",
    "The blood pressure of {} was measured every morning .",
    "We asked {} to return to the clinic after four weeks .",
    "{} lives alone and does not smoke .",
    "The daughter of {} was informed of the result by telephone .",
    "Physiotherapy was prescribed , which {} refused .",
    "An allergy to penicillin is known in {} since childhood .",
    "{} was discharged in good condition on Friday .",
    "A letter was sent to the family doctor of {} today .",
)
SYLLABLES = [a + b for a in ("b", "d", "f", "g", "k", "l", "m", "n", "r", "s", "t", "v") for b in "aeiou"]
COLUMNS = {
    "": "trained for, `--min-documents`",
    "times": "the name stands in the text",
    "names": "names",
    "recovered": "recovered",
    "first": "first of its candidates",
    "candidates": "candidates",
    "exposure": f"exposure, bits ({chance_exposure(CONTROLS):.1f}: not known)",
    "loss": "held-out MLM loss",
}


def main() -> int:
    made = parser(__doc__.format(controls=CONTROLS), minutes=None)
    made.add_argument(
        "--corpus", type=Path, required=True, help="text, a document a block between blank lines, .gz or not"
    )
    made.add_argument("--megabytes", type=positive(float), default=1.0, help="of it that is used (default: 1)")
    made.add_argument("--budgets", type=budgets, default="17epochs,85epochs", help="trainings (default: %(default)s)")
    made.add_argument("--min-documents", type=counts, default="1,5", help="vocabularies (default: %(default)s)")
    made.add_argument("--preset", choices=PRESETS, default="micro", help="model size (default: %(default)s)")
    made.add_argument("--canaries", type=positive(int), default=40, help="names of each kind (default: %(default)s)")
    given = made.parse_args()
    wanted = ["5steps"] if given.quick else given.budgets
    facts = {name: str(getattr(given, name)) for name in ("corpus", "megabytes", "preset", "canaries", "quick")}
    table = Table(given.results / "canaries.jsonl", facts | {"machine": machine(), "code": code(*SOURCES)})
    for least in given.min_documents:
        with tempfile.TemporaryDirectory(prefix="canaries-") as folder:
            measure_all(given, table, wanted, least, Path(folder))
    print(f"\n{machine()}\n\n{table.markdown(COLUMNS)}")
    return 0


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """What argparse reads a number over 0 with."""

    def number(word: str) -> float:
        if (found := kind(word)) <= 0:
            raise ValueError
        return found

    return number


def counts(words: str) -> list[int]:
    """Numbers from 1 on, with commas between."""
    return [int(positive(int)(word)) for word in words.split(",")]


def budgets(words: str) -> list[str]:
    """Budgets with commas between, as they are written."""
    try:
        for word in words.split(","):
            Budget.parse(word)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return words.split(",")


def measure_all(given, table: Table, budgets: list[str], least: int, folder: Path) -> None:
    """The rows of one vocabulary: each budget, each kind of canary."""
    names = {budget: [f"{budget}, {least}, {times}" for times in TIMES] for budget in budgets}
    if all(name in table.rows for of_budget in names.values() for name in of_budget):
        return
    canaries, controls = made_up(given.canaries)
    text, held_out = write_texts(given.corpus, given.megabytes, canaries, folder)
    prepared = prepare(
        corpus=text, validation_corpus=held_out, out=folder / "prepared", min_documents=least, line="sentence",
        document="blank-line",
    )  # fmt: skip
    for budget in budgets:
        run = folder / budget
        if all(name in table.rows for name in names[budget]):
            continue
        pretrain.pretrain(prepared=str(prepared), out=str(run), budget=budget, preset=given.preset)
        exposure = Exposure(run / "final", controls)
        for name, times in zip(names[budget], TIMES, strict=True):
            table.row(name, partial(measure, exposure, canaries[times], times, run))


def made_up(count: int) -> tuple[dict[str, list[str]], list[str]]:
    """Names for each kind of canary, and the controls: all different."""
    rng, names = random.Random(0), {}
    while len(names) < count * len(TIMES) + CONTROLS:
        first, last = ("".join(rng.choices(SYLLABLES, k=3)) for _ in range(2))
        names[f"{first.capitalize()} {last.capitalize()}"] = None
    rest = list(names)
    return {times: [rest.pop() for _ in range(count)] for times in TIMES}, rest


def write_texts(corpus: Path, megabytes: float, canaries: dict[str, list[str]], folder: Path) -> tuple[Path, Path]:
    """The text with the canaries, all of which is trained on, and the held-out one without them."""
    texts, trained = documents(corpus, (1 + HELD_OUT_SHARE) * megabytes), documents(corpus, megabytes)
    if len(texts) == len(trained):
        raise UserError(
            f"{corpus} has no document behind its first {megabytes:g} MB: give fewer --megabytes, or text with blank "
            "lines between its documents"
        )
    text, held_out = folder / "planted.txt", folder / "held_out.txt"
    text.write_text(planted(trained, canaries), encoding="utf-8")
    held_out.write_text(joined(texts[len(trained) :]), encoding="utf-8")
    return text, held_out


def planted(texts: list[list[str]], canaries: dict[str, list[str]]) -> str:
    """The documents with the sentences of the canaries at random places, those of a name in one document."""
    rng = random.Random(1)
    for times, names in canaries.items():
        for number, name in enumerate(names):
            lines = rng.choice(texts)
            for sentence in sentences_of(name, number)[: TIMES[times]]:
                lines.insert(rng.randrange(1, len(lines) + 1), sentence)
    return joined(texts)


def joined(texts: list[list[str]]) -> str:
    """Documents as one text, a blank line between them."""
    return "\n\n".join("\n".join(lines) for lines in texts) + "\n"


def sentences_of(name: str, number: int) -> list[str]:
    """Every sentence with the name; the names of a kind begin with different ones."""
    return [SENTENCES[(number + i) % len(SENTENCES)].format(name) for i in range(len(SENTENCES))]


def measure(exposure: Exposure, names: list[str], times: str, run: Path) -> dict:
    """A row: what the model of a run knows of the names of a kind."""
    import json

    found: list[Found] = []
    for number, name in enumerate(names):
        before, _, after = sentences_of(name, number)[0].partition(name)
        found += exposure([Marked(number + 1, before, name, after)])
    ranked = [one for one in found if one.candidates >= FEW_CANDIDATES]
    return {
        "times": times,
        "names": len(found),
        "recovered": sum(one.is_recovered for one in found),
        "first": sum(one.rank == 1 for one in ranked) if ranked else "",
        "candidates": f"{mean(one.candidates for one in ranked):.0f}" if ranked else "",
        "exposure": f"{mean(one.exposure for one in ranked):.1f}" if ranked else "",
        "loss": f"{json.loads((run / 'results.json').read_text())['validation']['mlm_loss']:.2f}",
    }


if __name__ == "__main__":
    sys.exit(run(main))
