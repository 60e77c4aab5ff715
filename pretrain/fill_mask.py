"""What a checkpoint knows: the most probable words for each [MASK]. `python -m pretrain.fill_mask --model DIR "..."`"""

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from data_prep.console import command_line
from data_prep.console.options import POSITIONAL
from data_prep.text.cells import whole_characters, words_apart
from data_prep.vocabulary.wordpiece import WordPieceTokenizer

from .engine.settings import PretrainError

if TYPE_CHECKING:
    from torch import Tensor

MASK = "[MASK]"
_TEXTS_AT_ONCE = 32


@dataclass(frozen=True)
class FillMaskSettings:
    """Settings of `python -m pretrain.fill_mask`."""

    text: Annotated[tuple[str, ...], POSITIONAL] = ()
    """Sentences with one or more [MASK]. Without any, and without --file, they are read from standard input."""
    model: str = "runs/builtin/final"
    """Folder of the model: final/ of a run, a checkpoint, or one of transformers."""
    file: str | None = None
    """Read one sentence a line from this file."""
    top_k: int = 5
    """How many words to show for each [MASK]."""

    def __post_init__(self):
        if self.top_k < 1:
            raise PretrainError(f"--top-k {self.top_k} is less than 1: give a positive number")


class MaskFiller:
    """A pretrained model that fills masks.

    Args:
        folder: a model folder of ours or of transformers, with its tokenizer. Of an ELECTRA the generator fills masks,
            which its folder may hold.

    Raises:
        PretrainError: the folder cannot be opened.
    """

    def __init__(self, folder: str | Path):
        from model.families import masked_lm_folder

        from .engine.folder import family_of, model_mistakes, open_model, require_embeddings

        with model_mistakes(PretrainError):
            folder = masked_lm_folder(folder)
        self.model = open_model(family_of(folder, PretrainError).masked_lm, folder, PretrainError).eval()
        if self.model.newly_initialised:
            raise PretrainError(
                f"{folder} has not learned to fill masks: give a pretrained model, not a classifier, and of an ELECTRA "
                "the generator"
            )
        self.tokenizer = WordPieceTokenizer.load(folder)
        require_embeddings(folder, self.tokenizer.vocab_size, self.model.config.vocab_size, PretrainError)

    def __call__(self, texts: Sequence[str], top_k: int = 5) -> list[list[list[tuple[str, float]]]]:
        """For each text, for each of its masks in order: the `top_k` words with their probabilities, best first.

        Raises:
            PretrainError: a text has no [MASK], or is longer than the model can read.
        """
        import torch
        from torch.nn.utils.rnn import pad_sequence

        from model import PackedBatch

        if not texts:
            return []
        rows = [torch.tensor(self._encode(text)) for text in texts]
        ids, mask = (pad_sequence(each, batch_first=True) for each in (rows, [torch.ones_like(row) for row in rows]))
        at = (torch.cat(rows) == self.tokenizer.mask_id).nonzero().squeeze(1)
        with torch.inference_mode():
            encoded = self.model.bert.encode(PackedBatch.from_padded(ids, attention_mask=mask), at=at)
            probabilities = finite(self.model.word_scores(encoded.last_hidden_state).float().softmax(-1))
        best = probabilities[:, : self.tokenizer.vocab_size].topk(min(top_k, self.tokenizer.vocab_size))
        words = ([self.tokenizer.vocabulary[i] for i in of_mask] for of_mask in best.indices.tolist())
        of_masks = (list(zip(*each, strict=True)) for each in zip(words, best.values.tolist(), strict=True))
        return [list(islice(of_masks, int((row == self.tokenizer.mask_id).sum()))) for row in rows]

    def _encode(self, text: str) -> list[int]:
        parts = words_apart(text).split(MASK)
        if len(parts) < 2:
            raise PretrainError(f"there is no {MASK} in {text!r}: put {MASK} where a word is to be filled in")
        ids = [self.tokenizer.cls_id]
        for number, part in enumerate(self.tokenizer.encode(parts)):
            ids += [self.tokenizer.mask_id] * (number > 0) + part
        ids.append(self.tokenizer.sep_id)
        limit = self.model.config.max_position_embeddings
        if len(ids) > limit:
            raise PretrainError(f"{text[:60]!r}... has {len(ids)} tokens, the model reads {limit}: shorten it")
        return ids


def finite(found: "Tensor") -> "Tensor":
    """What a model says; raises PretrainError where some of it is no finite number."""
    if not found.isfinite().all():
        raise PretrainError("the weights of the model hold numbers that are not finite: give another --model")
    return found


def read_texts(settings: FillMaskSettings) -> Iterable[str]:
    """The sentences given as arguments, in a file, or on standard input; blank lines are passed over.

    What nobody types is UTF-8, whatever the terminal writes.
    """
    if settings.text and settings.file:
        raise PretrainError("sentences and --file were both given: leave one out")
    if settings.text:
        yield from map(whole_characters, settings.text)
        return
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    try:
        with open(settings.file, encoding="utf-8") if settings.file else sys.stdin as lines:
            yield from (whole_characters(line.strip()) for line in lines if line.strip())
    except OSError as error:
        raise PretrainError(f"cannot read {settings.file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PretrainError(f"{settings.file or 'standard input'} is not valid UTF-8: save it as UTF-8") from error


def run(settings: FillMaskSettings) -> None:
    """`python -m pretrain.fill_mask`. What is heavy is imported only now, so that --help answers at once."""
    from .engine.folder import require_made

    require_made(settings.model, FillMaskSettings.model, "pretrain.run")
    fill = MaskFiller(settings.model)
    waiting: list[str] = []
    # Who types a line waits for its words.
    is_typed = not settings.text and not settings.file and sys.stdin.isatty()
    for text in read_texts(settings):
        waiting.append(text)
        if len(waiting) == _TEXTS_AT_ONCE or is_typed:
            show(waiting, fill(waiting, settings.top_k))
            waiting = []
    if waiting:
        show(waiting, fill(waiting, settings.top_k))


def show(texts: Sequence[str], found: Sequence[Sequence[Sequence[tuple[str, float]]]]) -> None:
    """Print each text, and a line of words with probabilities for each of its masks."""
    for text, masks in zip(texts, found, strict=True):
        print(text)
        for words in masks:
            print("   " + "   ".join(f"{word} {probability:.1%}" for word, probability in words))
    sys.stdout.flush()


def main(argv: Iterable[str] | None = None) -> int:
    return command_line.main(
        FillMaskSettings,
        run,
        prog="python -m pretrain.fill_mask",
        description="Fill the [MASK]s of a sentence with a pretrained model.",
        examples='python -m pretrain.fill_mask --model runs/builtin/final "Returns the [MASK] of the array."',
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
