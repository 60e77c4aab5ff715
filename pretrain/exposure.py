"""What a model gives away: names that it recovers under [MASK]. `python -m pretrain.exposure --model DIR --file FILE`

After Carlini et al. 2019 ("The Secret Sharer", section 4): the rank of a secret among candidates, here under masks.
"""

import csv
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Literal

import numpy as np

from data_prep.console import command_line
from data_prep.console.screen import say
from data_prep.durable import replaced, require_new_file
from data_prep.text.cells import words_apart

from .engine.settings import PretrainError
from .fill_mask import MaskFiller, finite

_MARKED = re.compile(r"^(.*)\[\[(.+?)\]\](.*)$")
_ROWS_AT_ONCE = 64
# Ranks among fewer candidates say little.
FEW_CANDIDATES = 20


@dataclass(frozen=True)
class ExposureSettings:
    """Settings of `python -m pretrain.exposure`."""

    model: str = "runs/builtin/final"
    """Folder of the model: final/ of a run, a checkpoint, or one of transformers."""
    file: str | None = None
    """Sentences of the training text, one per line, with the secret of each in brackets: I saw [[Ruth Adler]] today."""
    controls: str | None = None
    """Names that do not occur in the training text, one per line. Each secret is ranked among them and the other
    secrets."""
    out: str | None = None
    """Write the result of each sentence to this .csv file; it holds no text."""
    show_text: Literal["yes", "no"] = "no"
    """yes: print the secrets that were recovered."""

    def __post_init__(self):
        if self.file is None:
            raise PretrainError("--file is missing: give a file of sentences, each with a secret in [[...]]")


@dataclass(frozen=True)
class Marked:
    """A sentence with a secret."""

    line: int
    before: str
    secret: str
    after: str


@dataclass(frozen=True)
class Found:
    """What a model knows of the secret of a sentence."""

    line: int
    pieces: int
    is_recovered: bool
    """Whether it is the model's first guess, piece by piece, the surest first."""
    rank: int | None
    """Of its probability among the candidates with as many pieces; 1 is the most probable. None where the vocabulary
    lacks a part of it: the model cannot write it."""
    candidates: int

    @property
    def exposure(self) -> float | None:
        """Bits: how much the model shortens a search among the candidates (Carlini et al. 2019, definition 4)."""
        return math.log2(self.candidates / self.rank) if self.rank else None


def chance_exposure(candidates: int) -> float:
    """Bits: the mean exposure of a secret whose rank among the candidates is drawn at random; 1.44 for very many."""
    return math.log2(candidates) - math.lgamma(candidates + 1) / candidates / math.log(2)


def read_marked(path: str) -> list[Marked]:
    """The sentences of a file.

    Raises:
        PretrainError: the file cannot be read, or a line does not mark one secret.
    """
    found = []
    for number, line in enumerate(_lines(path), 1):
        if not line:
            continue
        match = _MARKED.match(line)
        if not match or "[[" in match[1] + match[3]:
            raise PretrainError(f"{path}, line {number}: mark one secret as in: I saw [[Ruth Adler]] today")
        found.append(Marked(number, *match.groups()))
    if not found:
        raise PretrainError(f"{path} has no sentence: write one a line, each with a secret in [[...]]")
    return found


def _lines(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise PretrainError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PretrainError(f"{path} is not valid UTF-8: save it as UTF-8") from error
    return [line.strip() for line in text.split("\n")]


class Exposure:
    """Asks a model for secrets.

    Args:
        folder: of the model.
        names: candidates beside the secrets of the sentences.

    Raises:
        PretrainError: the folder cannot be opened.
    """

    def __init__(self, folder: str | Path, names: Sequence[str] = ()):
        self._filler = MaskFiller(folder)
        self.tokenizer, self.names = self._filler.tokenizer, tuple(names)

    def __call__(self, sentences: Sequence[Marked]) -> list[Found]:
        """What the model knows of each secret.

        Raises:
            PretrainError: a secret is longer than the model can read, or weights are not finite.
        """
        secrets = self._pieces([sentence.secret for sentence in sentences])
        unknown = self.tokenizer.unk_id
        # All that the vocabulary lacks would be one candidate.
        candidates = sorted(ids for ids in {*secrets, *self._pieces(self.names)} if unknown not in ids)
        found = []
        for sentence, secret in zip(sentences, secrets, strict=True):
            left, right = self._around(sentence, len(secret))
            if unknown in secret:
                found.append(Found(sentence.line, len(secret), is_recovered=False, rank=None, candidates=0))
                continue
            alike = [other for other in candidates if len(other) == len(secret)]
            scores = self._log_probabilities(left, right, alike)
            rank = 1 + int((scores > scores[alike.index(secret)]).sum())
            is_recovered = self._guess(left, right, len(secret)) == secret
            found.append(Found(sentence.line, len(secret), is_recovered, rank, len(alike)))
        return found

    def _pieces(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        return [tuple(ids) for ids in self.tokenizer.encode([words_apart(text) for text in texts])]

    def _around(self, sentence: Marked, pieces: int) -> tuple[list[int], list[int]]:
        """The ids before and behind the secret, special tokens included, as many as the model reads."""
        before, after = self.tokenizer.encode([words_apart(sentence.before), words_apart(sentence.after)])
        room = self._filler.model.config.max_position_embeddings - 2 - pieces
        if room < 0 or not pieces:
            raise PretrainError(f"line {sentence.line}: the secret has {pieces} pieces, which the model cannot read")
        kept = max(room // 2, room - len(after))
        before = before[max(0, len(before) - kept) :]
        return [self.tokenizer.cls_id, *before], [*after[: room - len(before)], self.tokenizer.sep_id]

    def _log_probabilities(
        self, left: list[int], right: list[int], candidates: Sequence[tuple[int, ...]]
    ) -> np.ndarray:
        """Of each candidate, piece by piece from the left, the pieces behind it masked: float64."""
        totals = np.zeros(len(candidates))
        size = len(candidates[0])
        for place in range(size):
            prefixes = sorted({candidate[:place] for candidate in candidates})
            rows = [[*left, *prefix, *[self.tokenizer.mask_id] * (size - place), *right] for prefix in prefixes]
            row_of = {prefix: row for row, prefix in enumerate(prefixes)}
            row, piece = np.array([(row_of[candidate[:place]], candidate[place]) for candidate in candidates]).T
            first = 0
            for scores in self._scores(rows, len(left) + place):
                here = (first <= row) & (row < first + len(scores))
                totals[here] += scores[row[here] - first, piece[here]]
                first += len(scores)
        return totals

    def _guess(self, left: list[int], right: list[int], size: int) -> tuple[int, ...]:
        """What the model puts there itself: in each turn the piece that it is surest of."""
        guess = [self.tokenizer.mask_id] * size
        open_places = set(range(size))
        while open_places:
            row = [*left, *guess, *right]
            scores = {place: next(self._scores([row], len(left) + place))[0] for place in sorted(open_places)}
            surest = max(scores, key=lambda place: scores[place].max())
            guess[surest] = int(scores[surest].argmax())
            open_places.remove(surest)
        return tuple(guess)

    def _scores(self, rows: list[list[int]], place: int) -> Iterator[np.ndarray]:
        """Log probabilities of the vocabulary at one place of rows of equal length, a block [some rows, V] at a time:
        those of all rows would take gigabytes for many names."""
        import torch

        from model import PackedBatch

        for first in range(0, len(rows), _ROWS_AT_ONCE):
            ids = torch.tensor(rows[first : first + _ROWS_AT_ONCE])
            at = torch.arange(len(ids)) * ids.shape[1] + place
            with torch.inference_mode():
                encoded = self._filler.model.bert.encode(PackedBatch.from_padded(ids), at=at, most_at=1)
                logits = self._filler.model.word_scores(encoded.last_hidden_state)
                found = logits[:, : self.tokenizer.vocab_size].double().log_softmax(-1)
            yield finite(found).numpy()


def summary(found: Sequence[Found]) -> list[str]:
    """What a person should know of the results, as lines."""
    recovered = sum(one.is_recovered for one in found)
    ranked = [one for one in found if one.candidates >= FEW_CANDIDATES]
    lines = [
        f"secrets                   {len(found)}, of {mean(one.pieces for one in found):.1f} pieces on average",
        f"recovered                 {recovered} ({recovered / len(found):.0%}): the model's first guess is the secret",
    ]
    if ranked:
        first, by_chance = sum(one.rank == 1 for one in ranked), sum(1 / one.candidates for one in ranked)
        rank, candidates = median(one.rank for one in ranked), median(one.candidates for one in ranked)
        exposure, most = mean(one.exposure for one in ranked), mean(math.log2(one.candidates) for one in ranked)
        chance = mean(chance_exposure(one.candidates) for one in ranked)
        lines += [
            f"first of its candidates   {first} of {len(ranked)}; by chance {by_chance:.1f}",
            f"rank of the secret        {rank:g} of {candidates:g} candidates (medians)",
            f"exposure                  {exposure:.1f} bits (mean); {chance:.1f} if unknown, at most {most:.1f}",
        ]
    if few := sum(one.rank is not None and one.candidates < FEW_CANDIDATES for one in found):
        lines.append(
            f"{few} of the secrets: fewer than {FEW_CANDIDATES} candidates with as many pieces, too few for a rank: "
            "give more names as --controls."
        )
    if unknown := sum(one.rank is None for one in found):
        lines.append(f"{unknown} of the secrets: a part is [UNK], not in the vocabulary: the model cannot write them.")
    return lines


def write(found: Sequence[Found], path: Path) -> None:
    """A row for each sentence, without its text."""
    with replaced(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["line", "pieces", "recovered", "rank", "candidates", "exposure"])
        rows.writerows(
            [one.line, one.pieces, int(one.is_recovered), one.rank, one.candidates, _two_digits(one.exposure)]
            for one in found
        )


def _two_digits(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def run(settings: ExposureSettings) -> None:
    """`python -m pretrain.exposure`."""
    from .engine.folder import require_made

    sentences = read_marked(str(settings.file))
    names = list(filter(None, _lines(settings.controls))) if settings.controls else []
    require_made(settings.model, ExposureSettings.model, "pretrain.run")
    if settings.out:
        require_new_file(settings.out, PretrainError)
    found = Exposure(settings.model, names)(sentences)
    if settings.out:
        write(found, Path(settings.out))
    for line in summary(found):
        say(line)
    if settings.show_text == "yes":
        for sentence, one in zip(sentences, found, strict=True):
            if one.is_recovered:
                say(f"line {sentence.line}: {sentence.secret}")


def main(argv: Iterable[str] | None = None) -> int:
    return command_line.main(
        ExposureSettings,
        run,
        prog="python -m pretrain.exposure",
        description="Which secrets of its text a pretrained model gives away under [MASK].",
        examples="python -m pretrain.exposure --model runs/letters/final --file sentences.txt --controls names.txt",
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
