"""The runs behind the tables of README and docs, as commands that anybody can give; published.py runs them.

In a command, {data} is the folder of the data sets (docs/data_sets.md), {public} a public BERT, and the name of another
run the folder that it writes.
"""

import string
from dataclasses import dataclass
from itertools import product

# Raise it when the defaults of pretraining change what is learned: all runs are then measured again.
RECIPE = 1
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Labelled:
    """A labelled set.

    Args:
        folder: of its files, "train" and "test" and, where it `has_validation`, "validation".
        score: of results.json, which tables show, and what they call it.
        options: of `finetune.run` besides.
        models: that are compared: the first one, and those beside it.
    """

    words: str
    folder: str
    ending: str = "jsonl"
    has_validation: bool = True
    score: tuple[str, str] = ("accuracy", "accuracy")
    options: str = ""
    models: tuple[str, ...] = (
        "{articles_60m}/final", "{general_60m}/final", "{public_60m}/final", "{public}", "scratch",
    )  # fmt: skip


SETS = {
    "sections": Labelled("sections of clinical abstracts, 5 classes", "rct-sections", "jsonl.gz"),
    "trec": Labelled("TREC questions, 6 classes", "trec", has_validation=False),
    "sick": Labelled("SICK, entailment of pairs, 3 classes", "sick"),
    "relatedness": Labelled(
        "SICK, relatedness of pairs, 1 to 5", "sick", score=("pearson", "Pearson"), options="--label-column score"
    ),
    "pubmedqa": Labelled("PubMedQA, pairs, 3 classes", "pubmedqa-l", has_validation=False),
    "diseases": Labelled("diseases in abstracts (NCBI)", "ncbi-disease", "conll", score=("strict_f1", "strict F1")),
    "hallmarks": Labelled(
        "hallmarks of cancer, 10 labels", "hoc", score=("micro_f1", "micro-F1"), options="--group-column abstract"
    ),
    "reviews": Labelled(
        "Korean film reviews, 2 classes (ours: 12 minutes on them)",
        "nsmc-ko",
        "jsonl.gz",
        models=("{reviews_12m}/final", "scratch"),
    ),
}
# Models that are cross-validated on the 500 training rows of PubMedQA, which are few.
FOLDED = {
    "articles_60m": "--model {articles_60m}/final",
    "public": "--model {public}",
    "scratch": "--model {articles_60m}/final --from-scratch",
}
# Models to continue, with the corpus in their words, and peak learning rates.
CONTINUED = {
    "public": ("{public}", "articles_validation_in_public_words"),
    "ours": ("{articles_60m}/final", "articles_validation"),
}
RATES = {
    "muon": ("3e-5", "1e-4", "3e-4", "1e-3", "3e-3"),
    "adamw": ("1e-5", "3e-5", "1e-4", "3e-4", "1e-3"),
}
# Megabytes of text, and for how many epochs.
EPOCHS = {1: (10, 30, 100, 300), 5: (6, 20, 60), 20: (5, 15)}
REGULARISED = {
    "plain": "--dropout 0 --weight-decay 0.1",
    "dropout": "--dropout 0.1 --weight-decay 0.1",
    "both": "--dropout 0.1 --weight-decay 0.4",
}
ARTICLES, NOVELS = "{data}/pmc-rct-text", "{data}/english-novels-a"


@dataclass(frozen=True)
class Run:
    """A command without `python -m` or `python`, and without `--out`.

    Args:
        reads_test: its results are of a test part.
    """

    command: str
    reads_test: bool = False

    @property
    def needs(self) -> set[str]:
        """The names in braces."""
        return {name for _, name, _, _ in string.Formatter().parse(self.command) if name}

    @property
    def makes(self) -> str | None:
        """The file that says that a text or a corpus is made; None for a run with results."""
        return {"data_prep.run": "prepared.json", "benchmarks/beginning.py": "text.txt"}.get(self.command.split()[0])


def preparation(folder: str, part: str, arguments: str) -> Run:
    """A corpus whose held-out text is its validation or its test part: pretraining chooses nothing by it."""
    return Run(f"data_prep.run --corpus {folder}/train.txt.gz --validation-corpus {folder}/{part}.txt.gz {arguments}")


def pretraining(arguments: str) -> Run:
    return Run(f"pretrain.run {arguments}", reads_test=True)


def comparison(texts: Labelled) -> Run:
    first, *others = texts.models
    parts = ("train", "validation", "test") if texts.has_validation else ("train", "test")
    given = [f"finetune.run --model {first} --compare {' '.join(others)}"]
    given += [f"--{part} {{data}}/{texts.folder}/{part}.{texts.ending}" for part in parts]
    return Run(" ".join([*given, *texts.options.split(), f"--seeds {len(SEEDS)}"]), reads_test=True)


RUNS = {
    "articles": preparation(ARTICLES, "test", "--vocab-size 16384"),
    "novels": preparation(NOVELS, "test", "--vocab-size 8192"),
    "general": Run(
        f"data_prep.run --corpus {NOVELS}/train.txt.gz {{data}}/wikitext-2-valtest/test.raw.txt "
        f"--validation-corpus {NOVELS}/test.txt.gz --vocab-size 16384"
    ),
    "articles_in_public_words": preparation(ARTICLES, "test", "--tokenizer {public}"),
    "built_in": Run("pretrain.run"),
    "reviews_12m": Run("pretrain.run --corpus {data}/nsmc-ko/train.jsonl.gz --budget 12m"),
}
for corpus in ("articles", "novels"):
    for seed in SEEDS:
        RUNS[f"{corpus}_10m_{seed}"] = pretraining(f"--prepared {{{corpus}}} --budget 10m --seed {seed}")
    RUNS[f"{corpus}_60m"] = pretraining(f"--prepared {{{corpus}}} --budget 60m")
RUNS["general_60m"] = pretraining("--prepared {general} --budget 60m")
RUNS["public_60m"] = pretraining("--prepared {articles_in_public_words} --init-from {public} --budget 60m")

# What learns without a BERT is beside them without being asked for.
for name, texts in SETS.items():
    RUNS[name] = comparison(texts)
for name, model in FOLDED.items():
    RUNS[f"pubmedqa_folds_{name}"] = Run(
        f"finetune.run {model} --train {{data}}/pubmedqa-l/train.jsonl --folds 5 --seeds {len(SEEDS)}", reads_test=True
    )
# BERT-base is known to reach 0.968 so.
RUNS["trec_as_known"] = Run(
    "finetune.run --model {public} --train {data}/trec/train.jsonl --test {data}/trec/test.jsonl --budget 12epochs "
    f"--batch-size 50 --learning-rate 1e-4 --seeds {len(SEEDS)}",
    reads_test=True,
)

# What follows has counted budgets and one thread: it repeats to the bit. Choices are made by the validation part.
# Rates for a model that has learned: the public one, and ours of an hour.
RUNS["articles_validation_in_public_words"] = preparation(ARTICLES, "validation", "--tokenizer {public}")
RUNS["articles_validation"] = preparation(ARTICLES, "validation", "--tokenizer {articles_60m}/final")
for model, (folder, corpus) in CONTINUED.items():
    for optimizer, rates in RATES.items():
        for rate in rates:
            given = f"--init-from {folder} --optimizer {optimizer} --learning-rate {rate}"
            RUNS[f"{model}_{optimizer}_{rate}"] = Run(
                f"pretrain.run --prepared {{{corpus}}} {given} --budget 300steps --batch-size 32 --threads 1"
            )

# Little text, many epochs.
for size, counts in EPOCHS.items():
    RUNS[f"text_{size}mb"] = Run(f"benchmarks/beginning.py --corpus {ARTICLES}/train.txt.gz --megabytes {size}")
    RUNS[f"articles_{size}mb"] = Run(
        f"data_prep.run --corpus {{text_{size}mb}}/text.txt --validation-corpus {ARTICLES}/validation.txt.gz"
    )
    for count, (name, given) in product(counts, REGULARISED.items()):
        RUNS[f"{size}mb_{count}_{name}"] = Run(
            f"pretrain.run --prepared {{articles_{size}mb}} --preset micro --budget {count}epochs {given} --threads 1"
        )


def whole_command(name: str) -> str:
    """The command of a run with the commands of those it needs in the place of their names."""
    run = RUNS[name]
    inside = {need: f"[{whole_command(need)}]" if need in RUNS else f"{{{need}}}" for need in run.needs}
    return run.command.format_map(inside)
