"""What a person at the screen sees."""

from collections.abc import Iterator

from tqdm import tqdm

from ..text.corpus import Corpus, Document


class Bar(tqdm):
    """A progress bar."""

    # Before tqdm 4.70 a bar that a signal leaves half made lacks the attribute, and __del__ prints a traceback.
    disable = True


def tracked(corpus: Corpus, what: str) -> Iterator[Document]:
    """The documents of a corpus, with a bar of the bytes read where there is a terminal."""
    total = corpus.total_bytes or None
    with Bar(total=total, desc=what, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        for document in corpus.documents():
            yield document
            bar.update(corpus.bytes_read - bar.n)


def say(sentence: str) -> None:
    """Print for a person, at once."""
    print(sentence, flush=True)
