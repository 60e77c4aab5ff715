"""A fine-tuned model folder, ready to be asked."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from data_prep.files import write_json
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from model import BertForSequenceClassification, ModelError
from pretrain.engine.device import Precision
from pretrain.engine.distributed import World

from .data import BatchMaker
from .errors import FinetuneError
from .inference import probabilities
from .long_text import LongText
from .tasks import classification as task
from .tasks.classification import Example

FACTS_FILE = "finetune.json"
# Tokens computed at once. On a CPU more of them take no less time and more memory (measured).
_TOKENS_ON_CPU, _TOKENS_ON_GPU = 2048, 65_536


@dataclass(frozen=True)
class Facts:
    """What a folder of transformers has no place for: how the texts were read in training."""

    text_columns: tuple[str, ...]
    sequence_length: int
    long_text: LongText
    task: str = task.NAME

    def write(self, folder: Path) -> None:
        write_json(folder / FACTS_FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path, longest: int) -> "Facts":
        """The facts of a folder; without the file (a folder of transformers) the beginning of a text is read.

        Raises:
            FinetuneError: the file is damaged, or of another task.
        """
        path = folder / FACTS_FILE
        if not path.exists():
            return cls((), longest, "head")
        try:
            facts = cls(**json.loads(path.read_text(encoding="utf-8")))
            facts = cls(tuple(facts.text_columns), int(facts.sequence_length), facts.long_text, facts.task)
            # [CLS], two [SEP] and one token of text are the least.
            if facts.long_text not in get_args(LongText) or not 4 <= facts.sequence_length <= longest:
                raise ValueError("a value that training does not write")
        except (OSError, ValueError, TypeError) as error:
            raise FinetuneError(f"{path} is damaged: copy the folder again, or fine-tune anew") from error
        if facts.task != task.NAME:
            raise FinetuneError(f"{folder} is a model for {facts.task}, not for {task.NAME}: give another --model")
        return facts


class TextClassifier:
    """A fine-tuned model with its tokenizer and labels.

    Args:
        folder: final/ of a fine-tuning, or a BertForSequenceClassification of transformers.
        device, precision: resolved ("cpu", "fp32"); float32 gives the same numbers whatever is computed together.
        micro_batch_tokens: most tokens computed at once, by default by device.

    Raises:
        FinetuneError, PrepError: the folder is damaged, or holds no classifier.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str = "cpu",
        precision: str = "fp32",
        micro_batch_tokens: int | None = None,
    ):
        folder = Path(folder)
        self.model = open_classifier(folder).to(device)
        self.tokenizer = WordPieceTokenizer.load(folder)
        config = self.model.config
        if self.tokenizer.vocab_size > config.vocab_size:
            raise FinetuneError(
                f"{folder} has {self.tokenizer.vocab_size} vocabulary entries and {config.vocab_size} embeddings: use "
                "the tokenizer of this model"
            )
        self.labels = [(config.id2label or {}).get(i, f"LABEL_{i}") for i in range(config.num_labels)]
        self.num_long = 0
        """Texts so far that were longer than the model reads at once."""
        self.facts = Facts.read(folder, config.max_position_embeddings)
        self._precision = Precision(device, precision)
        self._tokens_at_once = micro_batch_tokens or (_TOKENS_ON_GPU if device == "cuda" else _TOKENS_ON_CPU)

    def probabilities(self, examples: Sequence[Example]) -> np.ndarray:
        """The probability of each label for each text: float32 [n, C]."""
        length, long_text = self.facts.sequence_length, self.facts.long_text
        encoded = task.encode(examples, self.labels, self.tokenizer, length, long_text)
        self.num_long += encoded.num_long
        maker = BatchMaker(encoded, self.tokenizer, self._tokens_at_once)
        return probabilities(self.model, maker, self._precision, World())


def open_classifier(folder: Path) -> BertForSequenceClassification:
    """The classifier of a folder.

    Raises:
        FinetuneError: the folder is damaged, or its head was never trained.
    """
    try:
        with warnings.catch_warnings():
            # Said below in a sentence of our own.
            warnings.simplefilter("ignore", UserWarning)
            model = BertForSequenceClassification.from_pretrained(folder)
    except ModelError as error:
        raise FinetuneError(str(error)) from error
    config = model.config
    if config.num_labels < 2 or config.problem_type in ("regression", "multi_label_classification"):
        raise FinetuneError(f"{folder} does not choose one of several classes (its problem_type or num_labels): give a "
                            "classifier of one label a text")  # fmt: skip
    if model.newly_initialised:
        raise FinetuneError(
            f"{folder} is no classifier, it lacks {model.newly_initialised[0]}: fine-tune it first with python -m "
            f"finetune.run --model {folder}"
        )
    return model
