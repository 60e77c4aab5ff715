"""The corpora of a preparation: the one to learn from, and the one to evaluate on where it is given."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from .console.screen import Bar
from .errors import PrepError
from .settings import PrepSettings
from .text.corpus import Corpus, Document
from .text.rules import CorpusRules
from .text.sources import Exclusion

# A sample has at least this many: one is held out, and random second sentences come from the others.
_SAMPLED_DOCUMENTS = 4


class Corpora:
    """Both corpora, opened as the settings say, to read whole or only their beginning.

    Args:
        sample_bytes: stop reading each corpus after this much text, for a try (see `sample.prepare_sample`).

    Attributes:
        validation_corpus: None where no such corpus is given.
        share_read, validation_share_read: about which share of the corpus and of the validation corpus a sample has;
            None where the size of the whole is not known.
        known: data sets of the Hub as they are known without being read (see `Corpus.known_by`), by the names of
            `digests`.

    Raises:
        PrepError: the files cannot be used, or a setting acts on neither corpus.
    """

    def __init__(self, prep: PrepSettings, sample_bytes: int | None = None):
        self.prep, self.sample_bytes = prep, sample_bytes
        self.share_read: float | None = 1.0
        self.validation_share_read: float | None = 1.0
        exclude = Exclusion(prep.exclude)
        self.corpus = self._open(prep.corpus, exclude, prep.group_column)
        self.validation_corpus = None
        if prep.validation_corpus:
            # Its documents are not split, and their words not counted: they need no groups.
            self.validation_corpus = self._open(prep.validation_corpus, exclude, None, self.corpus.rules)
        self._refuse_pointless()
        exclude.check([*prep.corpus, *prep.validation_corpus])
        self._named = {"text": self.corpus, "validation_text": self.validation_corpus}
        self.known = {name: known for name, corpus in self._named.items() if corpus and (known := corpus.known_by())}

    @property
    def opened(self) -> list[Corpus]:
        """The validation corpus first, where there is one."""
        return [corpus for corpus in (self.validation_corpus, self.corpus) if corpus]

    @property
    def corpus_names(self) -> str:
        """As they were given."""
        return ", ".join(self.prep.corpus)

    @property
    def held_out_names(self) -> str:
        """Of what is evaluated on, as they were given."""
        return ", ".join(self.prep.validation_corpus or self.prep.corpus)

    def _open(
        self,
        paths: tuple[str, ...],
        exclude: Exclusion,
        group_column: str | None,
        training: Sequence[CorpusRules] = (),
    ) -> Corpus:
        prep = self.prep
        return Corpus(
            paths,
            exclude=exclude,
            encoding=prep.encoding,
            text_column=prep.text_column,
            group_column=group_column,
            document=prep.document,
            line=prep.line,
            language=prep.language,
            show_text=prep.show_text == "yes",
            skip_bad_rows=prep.skip_bad_rows,
            training=training,
        )

    def _refuse_pointless(self) -> None:
        """Raises PrepError for a setting that acts on neither corpus."""
        opened = self.opened[::-1]
        shown = [", ".join(name for name, _ in corpus.files[:3]) for corpus in opened]
        names = ", ".join(shown)
        with_rows, with_texts = (any(getattr(each, name) for each in opened) for name in ("has_rows", "has_texts"))
        columns = (
            ("--text-column", self.prep.text_column, with_rows, names),
            ("--group-column", self.prep.group_column, self.corpus.has_rows, shown[0]),
        )
        for option, column, has_columns, files in columns:
            if column and not has_columns:
                raise PrepError(
                    f"{option} {column} has nothing to act on: {files} has no columns; leave it out, or give .jsonl, "
                    ".csv, .tsv or .parquet files"
                )
        if self.prep.document != "auto" and not with_texts:
            raise PrepError(f"--document {self.prep.document} is for .txt files and {names} is none; leave it out")
        if self.prep.group_by == "file" and not self.corpus.has_files:
            raise PrepError(f"--group-by file has nothing to act on: {names} is no file; leave it out")
        if self.prep.encoding != "utf-8" and not any(corpus.is_decoded for corpus in opened):
            raise PrepError(
                f"--encoding {self.prep.encoding} has nothing to act on: {names} is of a format that says its encoding "
                "itself; leave it out"
            )
        if self.prep.skip_bad_rows and not with_rows:
            raise PrepError(f"--skip-bad-rows has nothing to act on: {names} has no rows; leave it out")

    def digests(self, unread: Mapping[str, str]) -> dict[str, str]:
        """What tells the text from others, by the names "text" and "validation_text".

        Args:
            unread: digests of what is not read again.
        """
        return {name: unread.get(name) or corpus.digest() for name, corpus in self._named.items() if corpus}

    def fetch(self, folder: Path) -> Iterator[str]:
        """Read data sets of the Hub into a folder, saying in sentences what was read; a try reads their beginnings."""
        for corpus in () if self.sample_bytes else self.opened[::-1]:
            yield from corpus.fetch(folder)

    def introduction(self) -> Iterator[str]:
        """What is read, and how, in some lines for each corpus."""
        yield "\n".join(self.corpus.introduction())
        if self.validation_corpus:
            yield "\n".join(["The validation corpus:", *self.validation_corpus.introduction()])

    def documents(self, what: str) -> Iterator[Document]:
        """All documents, the validation corpus first, with a progress bar; for a try the beginning of each corpus.

        Args:
            what: is done with them, for the bar.
        """
        for corpus in self.opened:
            yield from self.documents_of(corpus, what)

    def documents_of(self, corpus: Corpus, what: str) -> Iterator[Document]:
        """All documents; for a try the first few, long ones cut, so that there are pairs of two documents."""
        if not self.sample_bytes:
            yield from _tracked(corpus, what)
            return
        read, kept, share = 0, 0, 1.0
        for count, document in enumerate(_tracked(corpus, what), 1):
            before = accumulate(map(len, document.lines), initial=0)
            lines = [line for line, size in zip(document.lines, before, strict=False) if size < self.sample_bytes]
            yield replace(document, lines=lines)
            read, kept = read + sum(map(len, document.lines)), kept + sum(map(len, lines))
            if kept >= self.sample_bytes and count >= _SAMPLED_DOCUMENTS:
                share = corpus.bytes_read / corpus.total_bytes if corpus.total_bytes else None
                break
        share = share and min(1.0, share * kept / max(1, read))
        if corpus is self.corpus:
            self.share_read = share
        else:
            self.validation_share_read = share


def _tracked(corpus: Corpus, what: str) -> Iterator[Document]:
    """The documents of a corpus, with a bar of the bytes read where there is a terminal."""
    total = corpus.total_bytes or None
    with Bar(total=total, desc=what, unit="B", unit_scale=True, miniters=1, disable=None, leave=False) as bar:
        for document in corpus.documents():
            yield document
            bar.update(corpus.bytes_read - bar.n)
