"""The runs behind the tables of README and docs, as commands that anybody can give (`--list` of published.py, which
runs them, adds what defaults were at the time).

In a command, {data} is the folder of the data sets (docs/data_sets.md), {public} a public BERT, and the name of another
run the folder that it writes.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product

# Raise it when the defaults of pretraining change what is learned, and say below what they were. A run is of the first
# recipe unless it names another: new ones name this one, and so do those that are measured again.
RECIPE = 2
# What runs of an earlier recipe are given, so that they do what they did.
EARLIER_DEFAULTS = {1: "--muon-matrices layers --pair-weight 1 --pair-rate 1"}
# Options of runs that these defaults do not concern: of what is no fresh BERT that learns next sentences with Muon.
_UNCHANGED = {"--init-from", "--teacher", "--objective", "--family", "--optimizer"}
SEEDS = (1, 2, 3)
# The models that are fine-tuned for each labelled set.
MODELS = {
    "articles_60m": "--model {articles_60m}/final",
    "general_60m": "--model {general_60m}/final",
    "public_60m": "--model {public_60m}/final",
    "public": "--model {public}",
    "scratch": "--model {shape}/final --from-scratch",
}
# Of most sets these three; the others tell whether the domain or the time made the difference.
_FEW_MODELS = {name: MODELS[name] for name in ("articles_60m", "public", "scratch")}


@dataclass(frozen=True)
class Labelled:
    """A labelled set.

    Args:
        folder: of its files, those of `parts`.
        made_by: the run that makes this folder; empty for one among the data sets.
        revision: to raise when its task alone learns or chooses otherwise.
        score: of results.json, which tables show, and what they call it.
        options: of `finetune.run` besides.
        models: that are fine-tuned for it, each as its options.
        epochs: that `auto` took when it was measured, where it takes more by now.
    """

    words: str
    folder: str
    ending: str = "jsonl"
    parts: tuple[str, ...] = ("train", "validation", "test")
    score: tuple[str, str] = ("accuracy", "accuracy")
    options: str = "--learning-rate search"
    models: Mapping[str, str] = field(default_factory=MODELS.copy)
    made_by: str = ""
    revision: int = 0
    epochs: int = 0

    def run(self, model: str) -> "Run":
        """The fine-tuning of a model, on one thread, so that it repeats to the bit."""
        place = f"{{{self.made_by}}}" if self.made_by else f"{{data}}/{self.folder}"
        texts = [f"--{part} {place}/{part}.{self.ending}" for part in self.parts]
        given = [self.models[model], *texts, self.options, f"--seeds {len(SEEDS)} --threads 1"]
        command, then = f"finetune.run {' '.join(given)}", f"--budget {self.epochs}epochs" if self.epochs else ""
        return Run(command, reads_test=True, score=self.score[0], recipe=1 + self.revision, then=then)


_FEW = "--learning-rate search --budget 10epochs"
SETS = {
    "sections": Labelled("sections of clinical abstracts, 5 classes", "rct-sections", "jsonl.gz"),
    "trec": Labelled("TREC questions, 6 classes", "trec", parts=("train", "test"), epochs=4),
    "sick": Labelled("SICK, entailment of pairs, 3 classes", "sick", epochs=5),
    "relatedness": Labelled(
        "SICK, relatedness of pairs, 1 to 5",
        "sick",
        score=("pearson", "Pearson"),
        options="--label-column score --learning-rate search",
        models=_FEW_MODELS,
        epochs=5,
    ),
    "similar": Labelled(
        "SICK, relatedness of pairs by vectors of single texts",
        "sick",
        score=("spearman", "Spearman"),
        options="--task similarity --label-column score --learning-rate search",
        models=_FEW_MODELS,
        epochs=5,
    ),
    # As many texts a group, and as long, as in Gao et al. 2021, section 3.
    "unlabelled": Labelled(
        "the same by vectors that learned from 14,778 sentences of clinical abstracts, without labels",
        "sick",
        parts=("validation", "test"),
        score=("spearman", "Spearman"),
        options="--task similarity --train {data}/rct-sections/train.jsonl.gz --text-column text --batch-size 64 "
        "--sequence-length 32 --budget 1epochs --learning-rate search",
        models={name: MODELS[name] for name in ("articles_60m", "public")},
    ),
    "titles": Labelled(
        "titles that find their articles among the 247 of the test part",
        "",
        score=("mrr", "MRR"),
        options="--task similarity --batch-size 64 --budget 3epochs --learning-rate search",
        models=_FEW_MODELS,
        made_by="title_rows",
    ),
    "diseases": Labelled(
        "diseases in abstracts (NCBI)",
        "ncbi-disease",
        "conll",
        score=("strict_f1", "strict F1"),
        models=_FEW_MODELS | {"general_60m": MODELS["general_60m"]},
        # Epoch, seed and rate are chosen by strict F1, and no longer by the lenient one.
        revision=1,
        epochs=4,
    ),
    "hallmarks": Labelled(
        "hallmarks of cancer, 10 labels",
        "hoc",
        score=("micro_f1", "micro-F1"),
        options="--group-column abstract --learning-rate search",
        models=_FEW_MODELS,
    ),
    "choices": Labelled(
        "OpenBookQA, 4 choices",
        "openbookqa",
        parts=("train", "test"),
        options="--skip-bad-rows --learning-rate search",
        models=_FEW_MODELS,
        epochs=5,
    ),
    # As many epochs as in Devlin et al. 2019, sections 4.2 and 4.3.
    "questions": Labelled(
        "SQuAD 1.1, a part, answers in a context",
        "squad-v1.1-part",
        "json",
        score=("f1", "F1"),
        options="--group-column context --budget 3epochs --learning-rate search",
        models=_FEW_MODELS,
    ),
    "unanswerable": Labelled(
        "SQuAD 2.0, a part, with questions that have no answer (ours: 5,962 steps)",
        "squad-v2-part",
        "json",
        score=("f1", "F1"),
        options="--group-column context --budget 2epochs --learning-rate search",
        models=_FEW_MODELS | {"articles_60m": "--model {articles_hours_steps}/final"},
    ),
    "pubmedqa": Labelled(
        "PubMedQA, pairs, 3 classes",
        "pubmedqa-l",
        parts=("train", "test"),
        options=_FEW,
        models=MODELS | {"public_60m": "--model {public_hours_steps}/final"},
    ),
    # The training rows are few: each is a test row once.
    "pubmedqa_folds": Labelled(
        "PubMedQA, the training rows in 5 folds",
        "pubmedqa-l",
        parts=("train",),
        options="--folds 5 --budget 10epochs",
        models=_FEW_MODELS,
    ),
    "reviews": Labelled(
        "Korean film reviews, 2 classes (ours: 12 minutes on them)",
        "nsmc-ko",
        "jsonl.gz",
        options="--learning-rate search --budget 1epochs",
        models={
            "reviews_12m": "--model {reviews_12m}/final",
            "scratch": "--model {reviews_12m}/final --from-scratch",
        },
    ),
    # The built-in texts, which have no file.
    "packages": Labelled(
        "Python package of a docstring, 5 classes (ours: 4 minutes on the built-in corpus)",
        "",
        parts=(),
        models={"built_in": "--model {built_in}/final", "scratch": "--model {built_in}/final --from-scratch"},
    ),
}
# With `--objective mlm` the MLM head's matrix is Muon's too by now; these runs are from before.
AS_MEASURED = "--muon-matrices layers"
# BERT and its relatives, ten minutes each on the articles: what they are, and their options. The runs of BERT itself
# serve other tables too.
RELATIVES = {
    "articles": ("BERT: masked words and next sentences", ""),
    "articles_mlm": ("masked words alone (`--objective mlm --muon-matrices layers`)", f"--objective mlm {AS_MEASURED}"),
    "articles_full": (
        "the same in full sentences (`--packing full-sentences` too)",
        f"--objective mlm {AS_MEASURED} --packing full-sentences",
    ),
    "articles_roberta": (
        "RoBERTa's recipe (`recipes/roberta.yaml`)",
        "--objective mlm --packing full-sentences --optimizer adamw --adam-beta2 0.98 --weight-decay 0.01 "
        "--clip-norm 1000000 --warmup 0.06 --dropout 0.1 --mask-share 0.15 --softmax full",
    ),
    "articles_whole_word": ("BERT with masks of whole words (`--masking whole-word`)", "--masking whole-word"),
    "articles_span": ("SpanBERT (`--masking span --objective mlm+sbo`)", "--masking span --objective mlm+sbo"),
    "articles_albert": (
        "ALBERT (`--family albert --objective mlm+sop --masking ngram`)",
        "--family albert --objective mlm+sop --masking ngram",
    ),
    "articles_electra": ("ELECTRA (`--objective electra`)", "--objective electra"),
}
# Every second layer of the hour's model, ten minutes each: alone, and with that model as the teacher.
STUDENTS = {
    "alone": (
        "half of its layers, without a teacher (`--init-from FOLDER --keep-layers half`)",
        "--init-from {articles_60m}/final --keep-layers half",
    ),
    "taught": ("the same with the teacher (`--teacher FOLDER`)", "--teacher {articles_60m}/final"),
    "taught_at_masks": (
        "the same at masked tokens alone (`--teacher FOLDER --teacher-positions masked`)",
        "--teacher {articles_60m}/final --teacher-positions masked",
    ),
}
# That the first seed of each is fine-tuned for.
RELATED_SETS = ("sections", "diseases")
# The plain BERT of ten minutes fine-tuned in other ways: what they are, and their options.
THIRD_STEPS = {
    "longer": ("all layers at one rate for 8 epochs (`--budget 8epochs`)", "--budget 8epochs"),
    "ulmfit": (
        "ULMFiT's third step (`--layer-decay 0.385 --unfreeze 0.625 --budget 8epochs`)",
        "--layer-decay 0.385 --unfreeze 0.625 --budget 8epochs",
    ),
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
# Megabytes of text, and for how many epochs `micro` reads them.
EPOCHS = {1: (10, 30, 100, 300), 5: (6, 20, 60), 20: (5, 15)}
REGULARISED = {
    "plain": "--dropout 0 --weight-decay 0.1",
    "dropout": "--dropout 0.1 --weight-decay 0.1",
    "decay": "--dropout 0 --weight-decay 0.4",
    "both": "--dropout 0.1 --weight-decay 0.4",
}
# Does more weight decay help novels as it helps articles, and with each seed? Epochs of a megabyte; of each novel, so
# many kilobytes are taken.
CONFIRMED, KILOBYTES = (30, 100), 50
WEIGHED = {"plain": "0.1", "decay": "0.4", "decay_0.8": "0.8"}
OTHER_DECAYS = ("0.2", "0.8", "1")
# Which loss is normal: megabytes of the articles, and for how many epochs each model reads them.
NORMAL = {1: 30, 5: 20, 20: 5, 53: 3}
SIZES = ("micro", "mini", "small")
LENGTHS = {
    "512": "--sequence-length 512 --batch-size 16",
    "128_512": "--sequence-length 128,512 --shifted-share 0 --batch-size 64,16",
}
TRIED_ON = ("sections", "diseases", "sick")
VOCABULARIES = (4096, 8192, 16384, 32768)
# As many tokens as eight hours like the third on the articles, in which it took 5,962 steps.
NIGHT = "318Mtokens"
NIGHTS = {
    "articles_night": "--prepared {articles}",
    "novels_night": "--prepared {novels}",
    "novels_night_decay": "--prepared {novels} --weight-decay 0.4",
}
ARTICLES, NOVELS = "{data}/pmc-rct-text", "{data}/english-novels-a"
# What a CPU without bf16 instructions says of itself (`pretrain.engine.device.Machine`).
WITHOUT_BF16 = "AVX2, no bf16"


@dataclass(frozen=True)
class Run:
    """A command without `python -m` or `python`, and without `--out`.

    Args:
        command: with the defaults of its recipe.
        reads_test: its results are of a test part.
        score: the one of a fine-tuning that counts.
        recipe: results of another one do not count.
        only_on: what a machine has to say of itself to run it. Results with these words are those of this run alone.
        then: of a fine-tuning, the options that make it what it was.
    """

    command: str
    reads_test: bool = False
    score: str | None = None
    recipe: int = 1
    only_on: str = ""
    then: str = ""

    @property
    def earlier_defaults(self) -> str:
        """The options that make it what it was, where its command alone would learn otherwise by now."""
        if self.then:
            return self.then
        is_changed = self.command.startswith("pretrain.run") and _UNCHANGED.isdisjoint(self.command.split())
        return EARLIER_DEFAULTS.get(self.recipe, "") if is_changed else ""

    @property
    def command_today(self) -> str:
        """The command with the defaults of today."""
        return f"{self.command} {self.earlier_defaults}".strip()

    @property
    def is_timed(self) -> bool:
        """Whether what else the machine does changes its result."""
        return self.command.startswith("pretrain.run") and "--threads 1" not in self.command

    @property
    def needs(self) -> set[str]:
        """The names in braces."""
        return {name for _, name, _, _ in string.Formatter().parse(self.command) if name}

    @property
    def makes(self) -> str | None:
        """The file that says that a text, rows or a corpus are made; None for a run with results."""
        files = {
            "data_prep.run": "prepared.json",
            "benchmarks/beginning.py": "text.txt",
            "benchmarks/retrieval_rows.py": "test.jsonl",
        }
        return files.get(self.command.split()[0])


def preparation(folder: str, part: str, arguments: str) -> Run:
    """A corpus whose held-out text is its validation or its test part: pretraining chooses nothing by it."""
    return Run(f"data_prep.run --corpus {folder}/train.txt.gz --validation-corpus {folder}/{part}.txt.gz {arguments}")


def pretraining(arguments: str, recipe: int = 1) -> Run:
    return Run(f"pretrain.run {arguments}", reads_test=True, recipe=recipe)


RUNS = {
    "articles": preparation(ARTICLES, "test", "--vocab-size 16384"),
    "novels": preparation(NOVELS, "test", "--vocab-size 8192"),
    "general": Run(
        f"data_prep.run --corpus {NOVELS}/train.txt.gz {{data}}/wikitext-2-valtest/test.raw.txt "
        f"--validation-corpus {NOVELS}/test.txt.gz --vocab-size 16384"
    ),
    "articles_in_public_words": preparation(ARTICLES, "test", "--tokenizer {public}"),
    # What begins from scratch takes no more of it than sizes and vocabulary.
    "shape": Run("pretrain.run --prepared {articles} --preset mini --budget 1steps --threads 1"),
    "built_in": Run("pretrain.run", recipe=RECIPE),
    "reviews_12m": Run("pretrain.run --corpus {data}/nsmc-ko/train.jsonl.gz --budget 12m", recipe=RECIPE),
    "title_rows": Run(f"benchmarks/retrieval_rows.py --corpus {ARTICLES}"),
}
for corpus in ("articles", "novels"):
    for seed in SEEDS:
        RUNS[f"{corpus}_10m_{seed}"] = pretraining(f"--prepared {{{corpus}}} --budget 10m --seed {seed}", RECIPE)
RUNS["articles_60m"] = pretraining("--prepared {articles} --budget 60m", RECIPE)
RUNS["novels_60m"] = pretraining("--prepared {novels} --budget 60m", RECIPE)
for name, (_, given) in (RELATIVES | STUDENTS).items():
    for seed in SEEDS:
        arguments = f"--prepared {{articles}} --budget 10m --seed {seed} {given}"
        # The plain BERT is among those above.
        RUNS.setdefault(f"{name}_10m_{seed}", pretraining(arguments.strip()))
# As many steps as the last of three hours took: it can be interrupted, and computed on any machine.
RUNS["articles_hours_steps"] = pretraining(
    "--prepared {articles} --preset mini --budget 5962steps --batch-size 64 --softmax sampled --threads 1"
)
RUNS["general_60m"] = pretraining("--prepared {general} --budget 60m", RECIPE)
RUNS["public_60m"] = pretraining("--prepared {articles_in_public_words} --init-from {public} --budget 60m")
RUNS["public_hours_steps"] = pretraining(
    "--prepared {articles_in_public_words} --init-from {public} --budget 1679steps --batch-size 64 --softmax sampled "
    "--threads 1"
)
# On the other kind of CPU.
for name in ("built_in", *(f"{corpus}_10m_{seed}" for corpus in ("articles", "novels") for seed in SEEDS)):
    RUNS[f"{name}_avx2"] = replace(RUNS[name], only_on=WITHOUT_BF16)
for name, given in NIGHTS.items():
    RUNS[name] = pretraining(f"{given} --preset mini --budget {NIGHT}", RECIPE)

# What learns without a BERT is part of each of them.
for name, texts in SETS.items():
    for model in texts.models:
        RUNS[f"{name}_{model}"] = texts.run(model)
for name, texts in product(RELATIVES | STUDENTS, RELATED_SETS):
    model = {name: f"--model {{{name}_10m_1}}/final"}
    RUNS[f"{texts}_{name}_10m"] = replace(SETS[texts], models=model).run(name)
for name, texts in product(NIGHTS, RELATED_SETS):
    model = {name: f"--model {{{name}}}/final"}
    RUNS[f"{texts}_{name}"] = replace(SETS[texts], models=model).run(name)
for (name, (_, given)), texts in product(THIRD_STEPS.items(), RELATED_SETS):
    options, model = f"{SETS[texts].options} {given}", {name: "--model {articles_10m_1}/final"}
    RUNS[f"{texts}_{name}"] = replace(SETS[texts], models=model, options=options, epochs=0).run(name)
# BERT-base is known to reach 0.968 so.
RUNS["trec_as_known"] = Run(
    "finetune.run --model {public} --train {data}/trec/train.jsonl --test {data}/trec/test.jsonl --budget 12epochs "
    f"--batch-size 50 --learning-rate 1e-4 --seeds {len(SEEDS)} --threads 1",
    reads_test=True,
    score="accuracy",
)
# What answers take: a BERT that has read more than an hour's, at the rate that `auto` gives it; and where half of the
# questions have none, more epochs.
for name, folder, epochs in (("questions", "squad-v1.1-part", 3), ("unanswerable", "squad-v2-part", 8)):
    RUNS[f"{name}_longer"] = Run(
        f"finetune.run --model {{public}} --train {{data}}/{folder}/train.json "
        f"--validation {{data}}/{folder}/validation.json --test {{data}}/{folder}/test.json "
        f"--group-column context --budget {epochs}epochs --seeds 1 --threads 1",
        reads_test=True,
        score="f1",
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

# Little text, many epochs. With batch and softmax of a CPU, on any machine.
ON_ANY_MACHINE = "--batch-size 64 --softmax sampled --threads 1"
for size, counts in EPOCHS.items():
    RUNS[f"text_{size}mb"] = Run(f"benchmarks/beginning.py --corpus {ARTICLES}/train.txt.gz --megabytes {size}")
    RUNS[f"articles_{size}mb"] = Run(
        f"data_prep.run --corpus {{text_{size}mb}}/text.txt --validation-corpus {ARTICLES}/validation.txt.gz"
    )
    for count, (name, given) in product(counts, REGULARISED.items()):
        RUNS[f"{size}mb_{count}_{name}"] = Run(
            f"pretrain.run --prepared {{articles_{size}mb}} --preset micro --budget {count}epochs {given} "
            f"{ON_ANY_MACHINE}"
        )
RUNS["text_of_novels"] = Run(
    f"benchmarks/beginning.py --corpus {NOVELS}/train.txt.gz --megabytes 1 --of-each {KILOBYTES}"
)
RUNS["novels_1mb"] = Run(
    f"data_prep.run --corpus {{text_of_novels}}/text.txt --validation-corpus {NOVELS}/validation.txt.gz"
)


def confirming(corpus: str, count: int, name: str, seed: int) -> str:
    """The run of a seed; the first on the articles is one of those above."""
    return f"{corpus}1mb_{count}_{name}" + (f"_{seed}" if corpus or seed > 1 else "")


for count, decay in product(CONFIRMED, OTHER_DECAYS):
    RUNS[f"1mb_{count}_decay_{decay}"] = Run(
        f"pretrain.run --prepared {{articles_1mb}} --preset micro --budget {count}epochs --weight-decay {decay} "
        f"--evaluations 3 {ON_ANY_MACHINE}"
    )
for corpus, count, (name, decay), seed in product(("", "novels_"), CONFIRMED, WEIGHED.items(), SEEDS):
    given = (
        f"--preset micro --budget {count}epochs --dropout 0 --weight-decay {decay} --seed {seed} --evaluations 3 "
        f"{ON_ANY_MACHINE}"
    )
    RUNS.setdefault(
        confirming(corpus, count, name, seed),
        Run(f"pretrain.run --prepared {{{corpus or 'articles_'}1mb}} {given}"),
    )

# Which loss is normal, and what examples of another length, another vocabulary, or no next sentences change.
for size in VOCABULARIES:
    RUNS[f"articles_{size}"] = preparation(ARTICLES, "validation", f"--vocab-size {size}")
    RUNS[f"vocabulary_{size}"] = Run(
        f"pretrain.run --prepared {{articles_{size}}} --preset micro --budget 2000steps {ON_ANY_MACHINE}"
    )
RUNS["no_next_sentences"] = Run(
    f"pretrain.run --prepared {{articles_8192}} --preset micro --budget 2000steps --objective mlm {AS_MEASURED} "
    f"{ON_ANY_MACHINE}"
)
for name, texts in product((*(f"vocabulary_{size}" for size in VOCABULARIES), "no_next_sentences"), TRIED_ON):
    RUNS[f"{texts}_{name}"] = replace(SETS[texts], models={name: f"--model {{{name}}}/final"}).run(name)


def normal_run(size: int, count: int, preset: str) -> str:
    """Of the table of epochs, `micro` is the plain one."""
    return f"{size}mb_{count}_{'plain' if preset == 'micro' and size in EPOCHS else preset}"


for (size, count), preset in product(NORMAL.items(), SIZES):
    corpus = f"articles_{size}mb" if size in EPOCHS else "articles_8192"
    given = f"--preset {preset} --budget {count}epochs --weight-decay 0.1 {ON_ANY_MACHINE}"
    RUNS.setdefault(normal_run(size, count, preset), Run(f"pretrain.run --prepared {{{corpus}}} {given}"))
for name, given in LENGTHS.items():
    RUNS[f"53mb_3_mini_{name}"] = Run(
        f"pretrain.run --prepared {{articles_8192}} --preset mini --budget 3epochs {given} --softmax sampled "
        "--threads 1"
    )


def models_behind(name: str) -> set[str]:
    """The pretrainings whose weights a result is of."""
    run = RUNS[name]
    needs = set() if "--from-scratch" in run.command else run.needs & RUNS.keys()
    own = {name} if run.command.startswith("pretrain.run") else set()
    return own.union(*map(models_behind, needs))


def whole_command(name: str) -> str:
    """The command of a run with the commands of those it needs in the place of their names."""
    run = RUNS[name]
    inside = {need: f"[{whole_command(need)}]" if need in RUNS else f"{{{need}}}" for need in run.needs}
    return run.command.format_map(inside)
