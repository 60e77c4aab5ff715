"""A fine-tuned model folder, ready to be asked."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_args

import numpy as np

from data_prep.durable import read_object, write_json
from data_prep.vocabulary.wordpiece import WordPieceTokenizer
from pretrain.engine.device import Precision
from pretrain.engine.distributed import World
from pretrain.engine.opening import require_embeddings

from .batches import BatchMaker, encode
from .errors import FinetuneError
from .inference import outputs
from .long_text import LongText
from .rows import Example
from .tasks import Task
from .tasks.offered import DEFAULT

FACTS_FILE = "finetune.json"
# Tokens computed at once. On a CPU more of them take no less time and more memory (measured).
_TOKENS_ON_CPU, _TOKENS_ON_GPU = 2048, 65_536


@dataclass(frozen=True)
class Facts:
    """What a folder of transformers has no place for: how the texts were read in training."""

    text_columns: tuple[str, ...]
    sequence_length: int
    long_text: LongText
    task: str = DEFAULT.name

    def write(self, folder: Path) -> None:
        write_json(folder / FACTS_FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path, longest: int, task: Task) -> "Facts":
        """The facts of a folder; without the file (a folder of transformers) the beginning of a text is read.

        Raises:
            FinetuneError: the file is damaged, or of another task.
        """
        path = folder / FACTS_FILE
        if not path.exists():
            return cls((), longest, "head", task.name)
        found = read_object(path, text_columns=list, sequence_length=int, long_text=str)
        # [CLS], two [SEP] and one token of text are the least.
        if (
            found is None
            or not found.keys() <= {field.name for field in fields(cls)}
            or found["long_text"] not in get_args(LongText)
            or not 4 <= found["sequence_length"] <= longest
        ):
            raise FinetuneError(f"{path} is damaged: copy the folder again, or fine-tune again")
        facts = cls(**found | {"text_columns": tuple(found["text_columns"])})
        if facts.task != task.name:
            raise FinetuneError(f"{folder} is a model for {facts.task}, not for {task.name}: give another --model")
        return facts


class Predictor:
    """A fine-tuned model with its tokenizer and what its task knows of it.

    Args:
        folder: final/ of a fine-tuning, or a model of transformers for the same task.
        device, precision: resolved ("cpu", "fp32"); float32 gives the same numbers whatever is computed together.
        micro_batch_tokens: most tokens computed at once, by default by device.
        task: what it was trained for; `tasks.offered.DEFAULT` if not given.

    Raises:
        FinetuneError, PrepError: the folder is damaged, or holds no model for the task.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str = "cpu",
        precision: str = "fp32",
        micro_batch_tokens: int | None = None,
        task: Task | None = None,
    ):
        folder, task = Path(folder), task or DEFAULT()
        self.model = task.open_model(folder).to(device)
        self.tokenizer = WordPieceTokenizer.load(folder)
        config = self.model.config
        require_embeddings(folder, self.tokenizer.vocab_size, config.vocab_size, FinetuneError)
        self.task = task.of_model(config)
        self.num_long = 0
        """Texts so far that were longer than the model reads at once."""
        self.facts = Facts.read(folder, config.max_position_embeddings, task)
        self._precision = Precision(device, precision)
        self._tokens_at_once = micro_batch_tokens or (_TOKENS_ON_GPU if device == "cuda" else _TOKENS_ON_CPU)

    def outputs(self, examples: Sequence[Example]) -> np.ndarray:
        """The task's outputs for each text, say the probability of each class: float32 [n, C]."""
        length, long_text = self.facts.sequence_length, self.facts.long_text
        encoded = encode(examples, self.task.targets(examples), self.tokenizer, length, long_text)
        self.num_long += encoded.num_long
        maker = BatchMaker(encoded, self.tokenizer, self._tokens_at_once)
        return outputs(self.task, self.model, maker, self._precision, World())
