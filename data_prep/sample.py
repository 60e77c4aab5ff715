"""The beginning of a corpus, prepared for a try, and what it says of the whole."""

from dataclasses import dataclass
from pathlib import Path

from .console.screen import say
from .durable import require_folder
from .errors import PrepError
from .near_duplicates import SIGNATURE_BYTES
from .preparation import Preparation
from .prepared import PreparedCorpus
from .records import RECORD
from .settings import ExampleSettings, PrepSettings
from .split import Split, held_out_target


@dataclass(frozen=True)
class Whole:
    """How many times as much as in its sample there is in a corpus, about."""

    train: float = 1.0
    validation: float = 1.0
    is_known: bool = True
    """Whether the size of the whole is known; if not, there may be more."""

    @property
    def about(self) -> str:
        return "about" if self.is_known else "at least"

    def tokens(self, sample: PreparedCorpus) -> int:
        """Of the whole corpus, with its held-out text."""
        train, validation = (sample.manifest[part]["tokens"] for part in ("train", "validation"))
        return round(self.train * train + self.validation * validation)

    def bytes_on_disk(self, sample: PreparedCorpus) -> float:
        """Of the whole corpus, prepared. The vocabulary and the report do not grow with the text."""
        times = {"train": self.train, "train_pairs": self.train,
                 "validation": self.validation, "validation_pairs": self.validation}  # fmt: skip
        names = (path.name for path in sample.folder.iterdir())
        return sum(times.get(name, 1.0) * _bytes_of(sample.folder / name) for name in names)

    def bytes_meanwhile(self, sample: PreparedCorpus) -> float:
        """Of what lies beside that until the whole is prepared: records, and encoded blocks, as large as its text, or
        before that what documents are compared by."""
        train, validation = (_bytes_of(sample.folder / part) for part in ("train", "validation"))
        documents, blocks = self.documents(sample), self.train * train + self.validation * validation
        signatures = documents * SIGNATURE_BYTES * ("near_duplicates" in sample.manifest["identity"])
        return RECORD.itemsize * documents + max(blocks, signatures - self.bytes_on_disk(sample))

    def documents(self, sample: PreparedCorpus) -> float:
        """Of the whole corpus, with the held-out ones."""
        train, validation = (sample.manifest[part]["documents"] for part in ("train", "validation"))
        return self.train * train + self.validation * validation


def _bytes_of(path: Path) -> int:
    """Of a file, or of all files of a folder."""
    return sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())


def prepare_sample(
    prep: PrepSettings, examples: ExampleSettings, out: Path, sample_bytes: int, out_of_whole: Path,
    static_masks: int = 0,
) -> tuple[PreparedCorpus, Whole]:  # fmt: skip
    """Prepare only the beginning of a corpus, for a try.

    Args:
        sample_bytes: about as much text is read.
        out_of_whole, static_masks: where the whole is to be prepared, with how many masked copies.

    Raises:
        PrepError: the input cannot be used, or `out_of_whole` holds something else.
    """
    job = Preparation(prep, examples, out, static_masks=0, sample_bytes=sample_bytes)
    require_folder(out_of_whole, PrepError)
    if job.is_in(out_of_whole, static_masks):
        say(f"{out_of_whole} holds a corpus prepared with these options: it is taken if its text is the same.")
    out.mkdir(parents=True)
    documents = job.run(None)
    return PreparedCorpus(out), _whole(job, documents)


def _whole(job: Preparation, documents: Split) -> Whole:
    share, of_validation = job.corpora.share_read, job.corpora.validation_share_read
    if job.corpora.validation_corpus:
        return Whole(1 / (share or 1.0), 1 / (of_validation or 1.0), None not in (share, of_validation))
    if share in (1.0, None):
        return Whole(is_known=share is not None)
    # Of a small corpus a larger share is held out.
    total = documents.bytes / share
    held_out = held_out_target(total, job.examples.longest)
    learned = documents.bytes - documents.held_out_bytes
    return Whole((total - held_out) / learned, held_out / documents.held_out_bytes)
