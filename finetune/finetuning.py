"""A fine-tuning from its settings to `final/` and `results.json`, or from where it stopped."""

import hashlib
from functools import partial
from pathlib import Path

import torch

from data_prep.console.screen import say
from data_prep.durable import write_text
from data_prep.vocabulary.text_tokenizer import TextTokenizer
from pretrain.engine.device import Machine
from pretrain.engine.distributed import World
from pretrain.engine.folder import weights_digest
from pretrain.engine.process import Interruption
from pretrain.engine.stage import as_before, stage, write_settings
from pretrain.engine.threads import busy

from .batches import Encoded
from .candidates import Search, paper_grid, ways
from .collapse import restarts_left
from .dataset import Dataset, read_dataset
from .output import to_json
from .resolve import MAY_DIFFER, out_folder, resolve, with_budget, with_task
from .results import Results, finished_results, presented, refuse_fewer_seeds
from .settings import FinetuneSettings
from .tasks import Task
from .teacher import open_teacher
from .tokenizer import open_tokenizer
from .training import Material, SeedTraining, best_of, seed_name

# Of the tokens: more are no rare words, but another language, script or form of its letters.
_MOST_UNKNOWN = 0.05


def finetune(settings: FinetuneSettings, task: Task | None = None) -> Path:
    """Run, or go on with, a fine-tuning; returns its output folder.

    Args:
        task: what is learned; by default that of `--task`.

    Raises:
        FinetuneError, PretrainError, PrepError: the input cannot be used, or the output folder holds something else.
    """
    out = out_folder(settings)
    with stage(settings, out, partial(resolved, settings, out)) as (settings, world, interruption):
        run_seeds(settings, out, read_dataset(settings, task), world, interruption)
    return out


def resolved(settings: FinetuneSettings, out: Path) -> FinetuneSettings:
    """The settings without `auto`, those of the run found in `out` included."""
    return resolve(as_before(settings, out, MAY_DIFFER) or settings)


def run_seeds(
    settings: FinetuneSettings,
    out: Path,
    dataset: Dataset,
    world: World,
    interruption: Interruption,
    with_baselines: bool = True,
    needs_seeds: bool = False,
) -> dict:
    """Train every seed that is not finished, then write down and say what they reached; returns results.json.

    Args:
        with_baselines: whether to add the results of what learns without a BERT.
        needs_seeds: whether the caller reads the seeds' outputs, so that a seed whose folder was removed is trained
            again; else a finished run can do without them.
    """
    settings = with_task(with_budget(settings, len(dataset.train)), dataset.task)
    torch.set_num_threads(settings.threads)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    material = prepare(settings, dataset)

    def finished() -> dict | None:
        refuse_fewer_seeds(out, seeds)
        if needs_seeds and not all((out / seed_name(seed) / "results.json").exists() for seed in seeds):
            return None
        if not (out / "final").is_dir() and all((out / seed_name(seed) / "model").is_dir() for seed in seeds):
            # It is written again, out of these.
            return None
        asked, shown = presented(settings, dataset), dataset.task.shown.values()
        return finished_results(out, seeds, material.digest, asked, shown)

    results = world.from_main(finished)
    if results:
        there = [str(path) for path in (out / "results.json", out / "final") if path.exists()]
        say(f"{out} holds this run, finished: see {' and '.join(there)}.")
        return results
    if world.is_main:
        write_settings(settings, out)
        _list_bad_rows(out / "bad_rows.jsonl", dataset)
    introduce(settings)
    searched = {"learning_rates_tried": None, "learning_rate_chosen": None, "grid": None, "search_seconds": 0.0}
    if len(candidates := ways(settings)) > 1:
        name = "grid" if settings.grid == "paper" else "rates"
        search = Search(settings, out, material, world, interruption, candidates, name)
        chosen = search.found()
        settings, searched = search.settings_of(chosen), searched | search.results(chosen)
    found = []
    for seed in seeds:
        if settings.seeds > 1:
            say(f"\nSeed {seed}:")
        # The seed of a search was trained once with each candidate, and is so again if its folder was removed.
        is_searched = len(candidates) > 1 and seed == settings.seed
        folder, restarts = out / seed_name(seed), 0 if is_searched else restarts_left(found)
        found.append(SeedTraining(settings, seed, folder, material, world, interruption, restarts).results())
    best = best_of(dataset.task, found, settings.metric, len(dataset.validation))
    return world.from_main(lambda: Results(settings, out, dataset, found, best, searched).write(with_baselines))


def _list_bad_rows(path: Path, dataset: Dataset) -> None:
    """Write place and problem of the rows that were skipped, if any were."""
    path.unlink(missing_ok=True)
    if dataset.bad_rows:
        rows = ({"place": place, "problem": problem} for place, problem in dataset.bad_rows)
        write_text(path, "".join(to_json(row) + "\n" for row in rows))
        say(f"{path} lists the bad rows.")


def prepare(settings: FinetuneSettings, dataset: Dataset) -> Material:
    """Tokenizer, teacher and ids; says how much of the texts will be cut."""
    tokenizer = open_tokenizer(settings.model)

    task, parts = dataset.task, (dataset.train, dataset.validation, dataset.test)
    teacher = open_teacher(settings, task, tokenizer, dataset.train)
    train, validation, test = (
        task.encode(part, tokenizer, settings.sequence_length, settings.long_text) for part in parts
    )
    say(cut_sentence(train, settings, task))
    for name, part in {"training": train, "validation": validation, "test": test}.items():
        warn_of_unknown(name, part, tokenizer)
    facts = [part.digest() for part in (train, validation, test)]
    facts += [weights_digest(Path(settings.model)), tokenizer.digest(), *task.facts()]
    facts += [] if teacher is None else [teacher.digest]
    digest = hashlib.blake2b("\0".join(facts).encode(), digest_size=16).hexdigest()
    return Material(dataset, tokenizer, train, validation, digest, teacher)


def cut_sentence(train: Encoded, settings: FinetuneSettings, task: Task) -> str:
    """What share of the training texts, and of their tokens, the model will not see."""
    length = settings.sequence_length
    if not train.num_long:
        return f"All training texts fit into {length} tokens.{train.lost()}"
    share = train.num_long / train.num_texts
    sentence = f"{share:.1%} of the training texts are longer than {length} tokens: "
    if settings.long_text == "windows":
        sentence += f"they are read in windows ({len(train.sequences):,} for {train.num_texts:,} texts)."
        more = f" Of questions or second texts that take more than half of a window {train.num_cut:,} tokens are cut."
        return sentence + (more if train.num_cut else "") + train.lost()
    cut = train.num_cut / train.num_tokens
    remedy = " (--long-text windows reads everything)" if "windows" in task.long_texts else ""
    return sentence + f"{cut:.1%} of all tokens will be cut{remedy}."


def warn_of_unknown(name: str, part: Encoded, tokenizer: TextTokenizer) -> None:
    """Say so where much of the texts of a part is not in the vocabulary."""
    share = float((part.ids == tokenizer.unk_id).mean()) if len(part.ids) else 0.0
    if share > _MOST_UNKNOWN:
        say(f"{share:.0%} of the tokens of the {name} texts are [UNK], words with a character that is not in the "
            "vocabulary: the model reads nothing of them. Give a model of this language and script as --model; letters "
            "with accents must be composed as in the text that it was pretrained on (mostly NFC).")  # fmt: skip


def introduce(settings: FinetuneSettings) -> None:
    """Say what was chosen."""
    start = "from scratch, in the shape of" if settings.from_scratch else "from"
    seeds = f", {settings.seeds} seeds of which the best is kept" if settings.seeds > 1 else ""
    taught = "" if settings.teacher is None else f", taught by {settings.teacher}"
    if settings.grid == "paper":
        how = f" with what is best of {len(paper_grid(settings))} ways, {settings.optimizer}"
    else:
        rate = "a learning rate to be found" if settings.learning_rate == "search" else f"{settings.learning_rate:g}"
        how = f" for {settings.budget}: {settings.batch_size} texts a step, {settings.optimizer} at {rate}"
    say(
        f"Fine-tuning {start} {settings.model}{how}, dropout {settings.dropout:g}, {settings.precision} on "
        f"{settings.device}{seeds}{taught}.\n{Machine.here(settings.device)}."
    )
    if warning := busy(settings):
        say(warning)
