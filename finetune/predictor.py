"""A fine-tuned model folder, ready to be asked."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import torch

from data_prep.durable import read_object, write_json
from data_prep.text.cells import is_blank, kind_of
from model.bert import BertWithHead
from model.weights import check_place
from pretrain.engine.batches import share
from pretrain.engine.device import Precision, evaluating, find_device
from pretrain.engine.distributed import World
from pretrain.engine.folder import model_mistakes, require_embeddings
from pretrain.engine.out_of_memory import fitting

from .batches import BatchMaker, LabelledBatch
from .columns import find_columns
from .parallel import in_parallel, tokens_at_once
from .rows import Columns, Example, refuse_table
from .settings import FACTS_FILE, FinetuneError, LongText
from .tasks import Task
from .tasks.classification import Classification
from .tasks.selection import task_of_folder
from .tokenizer import open_tokenizer


def outputs(
    task: Task,
    model: BertWithHead,
    maker: BatchMaker,
    precision: Callable[[], AbstractContextManager],
    world: World,
) -> np.ndarray:
    """What the task is judged by (`Task.judged`): most often its outputs for each text or word, float32 [I, C]."""
    return task.judged(outputs_of_items(task, model, maker, precision, world), maker.encoded)


def outputs_of_items(
    task: Task,
    model: BertWithHead,
    maker: BatchMaker,
    precision: Callable[[], AbstractContextManager],
    world: World,
) -> np.ndarray:
    """The task's outputs for each text, the mean over its windows, or for each word or token: float32 [I, C].

    The processes of `world` share the texts and have the same result. Dropout is off; the model's mode is put back.

    Raises:
        PretrainError: a GPU's memory is too small for one sequence.
    """
    device = next(model.parameters()).device
    encoded = maker.encoded
    mine = share(encoded.lengths(), world)

    def weighted(part: tuple[np.ndarray, LabelledBatch]) -> tuple[np.ndarray, np.ndarray]:
        items, batch = part
        with precision():
            logits = task.logits(model, batch.to(device))
        return items, (task.outputs(logits).cpu() * batch.weights[:, None]).numpy()

    def added() -> np.ndarray:
        found = np.zeros((len(encoded.targets), task.width(model.config)), dtype=np.float32)
        for items, each in in_parallel(weighted, maker.items_and_batches(mine), device):
            np.add.at(found, items, each)
        return found

    lengths = encoded.sequences.lengths()[np.isin(encoded.text, mine)]
    with evaluating(model):
        found = fitting(added, maker, lengths, device)
    return world.sum_tensor(torch.from_numpy(found)).numpy()


@dataclass(frozen=True)
class Facts:
    """What a folder of transformers has no place for: how the texts were read in training."""

    text_columns: tuple[str, ...]
    """Those of training, in the file; those that the model is asked with, as they are read from it."""
    sequence_length: int
    long_text: LongText
    task: str = Classification.name
    decision: dict[str, Any] = field(default_factory=dict)
    """See `Task.decision`."""

    def write(self, folder: Path) -> None:
        facts = asdict(self)
        write_json(folder / FACTS_FILE, facts if self.decision else {k: v for k, v in facts.items() if k != "decision"})

    @classmethod
    def read(cls, folder: Path, longest: int, task: Task) -> "Facts":
        """The facts of a folder; without the file (a folder of transformers) the beginning of a text is read.

        Raises:
            FinetuneError: the file is damaged, or of another task.
        """
        path = folder / FACTS_FILE
        with model_mistakes(FinetuneError):
            check_place(path)
        if not path.exists():
            return cls(task.pair_columns[0] if task.needs_pairs else (), longest, task.long_texts[0], task.name)
        found = read_object(path, text_columns=list, sequence_length=int, long_text=str)
        # [CLS], two [SEP] and one token of text are the least.
        if (
            found is None
            or len(found["text_columns"]) > 2
            or not all(isinstance(name, str) for name in found["text_columns"])
            or not found.keys() <= {each.name for each in fields(cls)}
            or not isinstance(found.get("decision", {}), dict)
            or found["long_text"] not in get_args(LongText)
            or not 4 <= found["sequence_length"] <= longest
        ):
            raise FinetuneError(f"{path} is damaged: copy the folder again, or fine-tune again")
        facts = cls(**found | {"text_columns": task.asked_columns(found["text_columns"])})
        if facts.task != task.name:
            raise FinetuneError(f"{folder} is a model for {facts.task}, not for {task.name}: give another --model")
        return facts


class _Asked(ABC):
    """What gives outputs for examples, asked with texts."""

    task: Task
    facts: Facts

    @abstractmethod
    def outputs(self, examples: Sequence[Example]) -> np.ndarray:
        """The task's outputs for each text, or for each word: say the probability of each class, float32 [I, C]."""

    def predict(self, texts: Iterable[str | Sequence[str] | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What the model makes of texts; of pairs of texts, for question answering a question and its context; for
        tagging of texts or lists of words; for multiple choice of rows such as {"question": "Stars are", "choices":
        ["cold", "hot"]}.

        Returns:
            For each of them what `python -m finetune.predict` writes beside it: {"predicted_label": "calm",
            "probabilities": {"calm": 0.75, "loud": 0.25}}.

        Raises:
            UserError: one of them is empty, no text, or not of the kind (text or pair) that the model was trained on.
        """
        if isinstance(texts, str | Mapping):
            what = "text" if isinstance(texts, str) else "row"
            raise FinetuneError(f"a single {what} was given where {what}s should be: put it into a list")
        refuse_table(texts)
        examples = list(_examples(texts, self.task, self.facts.text_columns))
        if not examples:
            return []
        each = self.task.of_texts(self.outputs(examples), examples)
        return [self.task.prediction(output, example) for output, example in zip(each, examples, strict=True)]


class Predictor(_Asked):
    """A fine-tuned model with its tokenizer and what its task knows of it.

    Args:
        folder: final/ of a fine-tuning, or a model of transformers for the same task.
        device: "cpu", "cuda" or "mps", by name or as a `torch.device`, or "auto" for cuda where it is there, else cpu.
        precision: "fp32" gives the same numbers whatever is computed together; "bf16" is faster where the hardware
            computes in it.
        micro_batch_tokens: most tokens computed at once, by default by device.
        task: what it was trained for; by default what the folder says.

    Raises:
        UserError: the folder is damaged, or holds no model for the task; or the device is not there.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str | torch.device = "auto",
        precision: str = "fp32",
        micro_batch_tokens: int | None = None,
        task: Task | None = None,
    ):
        # What needs no folder is looked at before one is opened.
        arithmetic = Precision(find_device(device), precision)
        self._folder = folder = Path(folder)
        task = task or task_of_folder(folder)
        self.model = task.open_model(folder).to(arithmetic.device)
        self.tokenizer = open_tokenizer(folder)
        config = self.model.config
        require_embeddings(folder, self.tokenizer.vocab_size, config.vocab_size, FinetuneError)
        self.num_long = 0
        """Texts so far that were longer than the model reads at once."""
        self.num_cut = 0
        """Tokens so far that were not read."""
        self.facts = Facts.read(folder, config.max_position_embeddings, task)
        self.task = task.of_model(config).with_decision(self.facts.decision)
        self._precision = arithmetic
        self._tokens_at_once = micro_batch_tokens or tokens_at_once(arithmetic.device)

    def outputs(self, examples: Sequence[Example]) -> np.ndarray:
        """The task's outputs for each text, or for each word: say the probability of each class, float32 [I, C].

        Raises:
            FinetuneError: one of them is NaN.
        """
        length, long_text = self.facts.sequence_length, self.facts.long_text
        encoded = self.task.encode(examples, self.tokenizer, length, long_text)
        self.num_long += encoded.num_long
        self.num_cut += encoded.num_cut
        maker = BatchMaker(encoded, self.tokenizer, self._tokens_at_once)
        found = outputs_of_items(self.task, self.model, maker, self._precision, World())
        if np.isnan(found).any():
            raise FinetuneError(f"{self._folder} gives outputs that are NaN, as its weights are damaged "
                                "or too large to compute with: copy the folder again, or fine-tune again")  # fmt: skip
        # What the memory allows is known now.
        self._tokens_at_once = maker.micro_batch_tokens
        return self.task.finished(self.task.judged(found, encoded))


ENSEMBLE_FILE = "ensemble.json"
"""In the folder of a run: what was decided on the mean of its seeds' outputs, and which seeds these were."""


def seed_folders(folder: str | Path) -> list[Path]:
    """The folders of the finished seeds of a run, in their order; none where the folder is no run."""
    found = [path.parent for path in Path(folder).glob("seed-*/results.json")]
    return sorted(found, key=lambda seed: (len(seed.name), seed.name))


def seeds_of(folder: str | Path) -> list[str]:
    """The models of the finished seeds of a run that are there, in the order of the seeds."""
    return [str(seed / "model") for seed in seed_folders(folder) if (seed / "model").exists()]


def seeds_decided_on(folder: str | Path) -> list[str]:
    """The models of the seeds that a run was finished with last: while it is given more, what was decided is of these.

    Raises:
        FinetuneError: one of them is not there.
    """
    models = seeds_of(folder)
    found = read_object(Path(folder) / ENSEMBLE_FILE, seeds=list)
    if found is None:
        # Of a single seed, or of an earlier release.
        return models
    named = {Path(model).parent.name: model for model in models}
    if missing := [name for name in map(str, found["seeds"]) if name not in named]:
        raise FinetuneError(f"{Path(folder) / missing[0]} is not there, or not whole: remove "
                            f"{Path(folder) / 'results.json'}, and give the command of the fine-tuning again, which "
                            "trains this seed")  # fmt: skip
    return [named[str(name)] for name in found["seeds"]]


_NO_ENSEMBLE = "{} is no finished run of several seeds: give the --out of one"


def decided_on_mean(folder: str | Path, task: Task) -> Task:
    """The task with what was decided on the mean of a run's seeds; raises FinetuneError where there is no such run."""
    found = read_object(Path(folder) / ENSEMBLE_FILE, decision=dict)
    if found is None:
        raise FinetuneError(_NO_ENSEMBLE.format(folder))
    return task.with_decision(found["decision"])


class Ensemble(_Asked):
    """All seeds of a run, whose outputs are averaged; it is asked as a `Predictor` is.

    Args:
        folder: of a finished run of several seeds.
        device, precision: see `Predictor`.

    Raises:
        UserError: the folder holds no such run, or a damaged one.
    """

    def __init__(self, folder: str | Path, device: str | torch.device = "auto", precision: str = "fp32"):
        self.seeds = [Predictor(model, device, precision) for model in seeds_decided_on(folder)]
        if not self.seeds:
            raise FinetuneError(_NO_ENSEMBLE.format(folder))
        if not self.seeds[0].task.has_answers:
            raise FinetuneError(f"{folder} holds models for {self.seeds[0].task.name}, whose answers have no mean: ask "
                                "its final/, without --ensemble")  # fmt: skip
        self.task, self.facts = decided_on_mean(folder, self.seeds[0].task), self.seeds[0].facts

    @property
    def num_long(self) -> int:
        """Texts so far that were longer than the models read at once."""
        return self.seeds[0].num_long

    @property
    def num_cut(self) -> int:
        """Tokens so far that were not read."""
        return self.seeds[0].num_cut

    def outputs(self, examples: Sequence[Example]) -> np.ndarray:
        """The mean of the seeds' outputs: float32 [I, C]."""
        return self.task.finished(self.task.averaged([seed.outputs(examples) for seed in self.seeds]))


class Classifier(Predictor):
    """A fine-tuned classifier: `Classifier.load(folder).predict(texts)`.

    Args:
        folder: final/ of a fine-tuning, or a sequence classifier of transformers.
        device, precision, micro_batch_tokens: see `Predictor`.

    Raises:
        UserError: the folder holds no such model.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str | torch.device = "auto",
        precision: str = "fp32",
        micro_batch_tokens: int | None = None,
    ):
        task = task_of_folder(Path(folder))
        if task.name != Classification.name:
            raise FinetuneError(f"{folder} is a model for {task.name}: open it with finetune.Predictor")
        super().__init__(folder, device, precision, micro_batch_tokens, task)

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "auto", precision: str = "fp32") -> Self:
        """The same as `Classifier(folder, device, precision)`."""
        return cls(folder, device, precision)


def _examples(given: Iterable[Any], task: Task, trained: Sequence[str]) -> Iterator[Example]:
    """Texts and pairs of a caller, texts of words, or rows.

    Args:
        trained: the columns of texts that the model was trained on; empty where they are not known.
    """
    for number, texts in enumerate(given, 1):
        place = f"text {number}"
        if task.asked_row:
            row, columns = texts, _columns_of(place, texts, task, trained)
        elif task.takes_pairs:
            parts = _parts(place, texts, len(trained))
            columns = Columns(("text", "text_pair")[: len(parts)])
            row = dict(zip(columns.texts, parts, strict=True))
        else:
            row, columns = {"text": texts}, Columns(("text",))
        try:
            yield task.example(place, row, columns)
        except ValueError as problem:
            raise FinetuneError(f"{place} {problem}: mend it, or leave it out") from None


def _parts(place: str, texts: Any, num_texts: int) -> tuple[str, ...]:
    """A text of a caller, or a pair of them.

    Args:
        num_texts: 1 or 2, as the model was trained; 0 where that is not known.
    """
    parts = tuple(texts) if isinstance(texts, tuple | list) else (texts,)
    if len(parts) not in (1, 2):
        raise FinetuneError(f"{place} has {len(parts)} parts: give a text, or a pair of texts")
    if others := [kind_of(part) for part in parts if not isinstance(part, str)]:
        is_one = "is" if parts == (texts,) else "has a part that is"
        raise FinetuneError(f"{place} {is_one} {others[0]}: give a text, or a pair of texts")
    if num_texts and len(parts) != num_texts:
        found, trained = {1: "a single text", 2: "a pair"}, {1: "single texts", 2: "pairs of texts"}
        raise FinetuneError(f"{place} is {found[len(parts)]}: the model was trained on {trained[num_texts]}")
    if any(map(is_blank, parts)):
        raise FinetuneError(f"{place} is empty: leave it out")
    return parts


def _columns_of(place: str, row: Any, task: Task, trained: Sequence[str]) -> Columns:
    """Those of a row of a caller: as in training, else by their names."""
    if not isinstance(row, Mapping):
        raise FinetuneError(f"{place} is {kind_of(row)}: give a row, {task.asked_row}")
    wanted = trained if all(name in row for name in trained) else ()
    return find_columns(task, place, [dict(row)], Columns(tuple(wanted)), labelled=False)
