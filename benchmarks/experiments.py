"""The runs behind the tables of README and docs, as commands that anybody can give; tables.py runs them.

In a command, {data} is the folder of the data sets (docs/data_sets.md), {public} a public BERT, and the name of another
run the folder that it writes.
"""

import string
from dataclasses import dataclass

SEEDS = (1, 2, 3)
# Labelled sets: folder, ending of its files, whether it has a validation part.
SETS = {
    "sections": ("rct-sections", "jsonl.gz", True),
    "trec": ("trec", "jsonl", False),
    "sick": ("sick", "jsonl", True),
    "pubmedqa": ("pubmedqa-l", "jsonl", False),
}
ARTICLES, NOVELS = "{data}/pmc-rct-text", "{data}/english-novels-a"


@dataclass(frozen=True)
class Run:
    """A command without `python -m`, and without `--out`.

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
    def is_preparation(self) -> bool:
        """Whether it leaves a prepared corpus, and no results."""
        return self.command.startswith("data_prep.run ")


def prepared(folder: str, arguments: str) -> Run:
    """A corpus whose held-out text is a test part: pretraining chooses nothing by it."""
    return Run(f"data_prep.run --corpus {folder}/train.txt.gz --validation-corpus {folder}/test.txt.gz {arguments}")


def pretrained(arguments: str) -> Run:
    return Run(f"pretrain.run {arguments}", reads_test=True)


def fine_tuned(models: str, folder: str, ending: str, has_validation: bool) -> Run:
    parts = ("train", "validation", "test") if has_validation else ("train", "test")
    texts = " ".join(f"--{part} {{data}}/{folder}/{part}.{ending}" for part in parts)
    return Run(f"finetune.run {models} {texts} --seeds {len(SEEDS)}", reads_test=True)


RUNS = {
    "articles": prepared(ARTICLES, "--vocab-size 16384"),
    "novels": prepared(NOVELS, "--vocab-size 8192"),
    "general": Run(
        f"data_prep.run --corpus {NOVELS}/train.txt.gz {{data}}/wikitext-2-valtest/test.raw.txt "
        f"--validation-corpus {NOVELS}/test.txt.gz --vocab-size 16384"
    ),
    "built_in": Run("pretrain.run"),
    "reviews_12m": Run("pretrain.run --corpus {data}/nsmc-ko/train.jsonl.gz --budget 12m"),
}
for corpus in ("articles", "novels"):
    for seed in SEEDS:
        RUNS[f"{corpus}_10m_{seed}"] = pretrained(f"--prepared {{{corpus}}} --budget 10m --seed {seed}")
    RUNS[f"{corpus}_60m"] = pretrained(f"--prepared {{{corpus}}} --budget 60m")
RUNS["general_60m"] = pretrained("--prepared {general} --budget 60m")
RUNS["public_60m"] = pretrained(
    f"--corpus {ARTICLES}/train.txt.gz --validation-corpus {ARTICLES}/test.txt.gz --init-from {{public}} --budget 60m"
)
# TF-IDF and the most frequent class are beside them without being asked for.
for name, texts in SETS.items():
    models = "--model {articles_60m}/final --compare {general_60m}/final {public_60m}/final {public} scratch"
    RUNS[name] = fine_tuned(models, *texts)
