"""One preparation: text -> documents -> vocabulary -> ids -> pairs -> report."""

import hashlib
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from .assembly import PARTS, assemble
from .console import command_line
from .console.screen import say
from .corpora import Corpora
from .corpus_numbers import corpus_numbers
from .durable import NO_ROOM, SHOWN_BY_FINDER, Damaged, file_digest, require_folder, write_json, write_text
from .encode import BLOCK_BYTES, cut_blocks, digester, encode, packages, process_pool, submitter
from .errors import PrepError
from .examples import static_copies as static
from .examples.pairs import VERSION as PAIRS_VERSION
from .memory import give_back
from .prepared import LOG, MANIFEST, PreparedCorpus, read_manifest, seal
from .records import read_records, read_signatures, record_documents
from .report import markdown, warnings, warnings_of_size
from .settings import ExampleSettings, PrepSettings
from .split import TRAIN, VALIDATION, Split, SplitRules, split_documents
from .text.corpus import LONGEST_DOCUMENT, Document
from .text.sentences import split
from .text_checks import TextChecks
from .vocabulary.make import VERSION as VOCABULARY_VERSION
from .vocabulary.make import extended_tokenizer, tokenizer_of_sample, trained_tokenizer
from .vocabulary.wordpiece import LONGEST_WORD, WordPieceTokenizer
from .work_folder import WorkFolder

# In the report, decoded.
_EXAMPLES_SHOWN = 3
_WORK = ".work"
# What a prepared corpus is made of, besides its manifest and its log.
_FOLDERS = (*PARTS, "train_pairs", "validation_pairs", *static.FOLDERS, "tokenizer")
_FILES = ("unigram_counts.npy", "validation_copied.npy", "prep_report.json", "prep_report.md")
# Settings that a manifest of an older version lacks, and the values they had.
_LATER = {
    "show_text": "yes", "min_documents": 1, "extend_vocab": 0, "skip_bad_rows": False, "group_by": "document",
    "near_duplicates": "keep",
}  # fmt: skip


def prepare(
    prep: PrepSettings,
    examples: ExampleSettings,
    out: str | Path,
    static_masks: int = 0,
    executor: Executor | None = None,
    waits: bool = False,
) -> PreparedCorpus:
    """Prepare a corpus, or find it prepared, or go on where an earlier run of the same settings stopped.

    Args:
        prep, examples: the settings.
        out: the folder to write; nothing is written outside it.
        static_masks: how many masked copies to write besides.
        executor: encodes the blocks, `prep.workers` of them at once; by default a process pool on this machine.
        waits: for another process that writes `out`, to take what that has made.

    Raises:
        PrepError: the input cannot be used, or `out` holds something else.
    """
    out = Path(out)
    require_folder(out, PrepError)
    created = not out.exists()
    job = Preparation(prep, examples, out, static_masks)
    if job.is_done():
        prepared = PreparedCorpus(out)
        job.work.remove()
        if not waits:
            say(f"{out} holds this corpus already: nothing to do.")
        return prepared
    try:
        with held(out, waits):
            try:
                # Another process may have finished in the meantime.
                if not job.is_done():
                    job.run(executor)
            except PrepError:
                job.clear_away()
                raise
    except Timeout as error:
        raise PrepError(f"{out} is being written by another process: wait for it, or give another --out") from error
    except PrepError:
        if not job.work.exists():
            (out / ".lock").unlink(missing_ok=True)
        if created or waits:
            # Not empty, or gone already.
            with suppress(OSError):
                out.rmdir()
        raise
    except Damaged as error:
        raise PrepError(f"{error}: run the same command again to make it once more") from error
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise PrepError(f"the disk of {out} is full: make room and give the same command again to go on") from error
    (out / ".lock").unlink(missing_ok=True)
    return PreparedCorpus(out)


def held(out: Path, waits: bool) -> AbstractContextManager[object]:
    """The folder made and locked for the time of the context.

    Args:
        waits: for another process that holds it.

    Raises:
        Timeout: another process holds it.
    """
    lock = FileLock(out / ".lock", timeout=-1 if waits else 0)
    while True:
        out.mkdir(parents=True, exist_ok=True)
        # One that fails removes the folder, maybe just now.
        with suppress(FileNotFoundError):
            return lock.acquire()


class Preparation:
    """One preparation: its corpora, its folder, and its steps in order.

    Args:
        sample_bytes: stop reading after this much text (see `sample.prepare_sample`).
    """

    def __init__(
        self,
        prep: PrepSettings,
        examples: ExampleSettings,
        out: Path,
        static_masks: int,
        sample_bytes: int | None = None,
    ):
        self.prep, self.examples, self.out, self.static_masks = prep, examples, out, static_masks
        self.is_sample = sample_bytes is not None
        self.work = WorkFolder(out / _WORK)
        self.corpora = Corpora(prep, sample_bytes)
        self.given_tokenizer = WordPieceTokenizer.load(prep.tokenizer) if prep.tokenizer else None
        self.checks = TextChecks(self.given_tokenizer.longest_word if self.given_tokenizer else LONGEST_WORD)
        self.started = time.monotonic()
        self.log: list[str] = []
        # Documents of the validation corpus.
        self.num_validation = 0
        self._unread: dict[str, str] = {}

    @cached_property
    def identity(self) -> dict:
        """Everything that decides the content of the folder, and nothing else (no path, no number of workers)."""
        settings = command_line.as_dict(self.prep) | command_line.as_dict(self.examples)
        for name in ("corpus", "exclude", "validation_corpus", "workers", "tokenizer"):
            del settings[name]
        # So that the identity of what was prepared without these settings stays the same.
        for name, default in _LATER.items():
            if settings[name] == default:
                del settings[name]
        if self.given_tokenizer:
            for name in ("vocab_size", "lowercase", "strip_accents"):
                del settings[name]
            settings["tokenizer"] = self.given_tokenizer.digest()
        if self.is_sample:
            return settings
        return settings | self.corpora.digests(self._unread) | {"static_masks": self.static_masks}

    def is_done(self) -> bool:
        """Whether `out` holds exactly this; an `out` that holds something else is refused."""
        return self.is_in(self.out, self.static_masks)

    def is_in(self, out: Path, static_masks: int) -> bool:
        """Whether a folder holds this corpus, prepared with these settings. A sample compares the settings alone: it
        has not read the whole text.

        Args:
            static_masks: the number of masked copies that the folder is to have.

        Raises:
            PrepError: it holds something else.
        """
        if (out / MANIFEST).exists():
            manifest = read_manifest(out)
            before, earlier = manifest["identity"], manifest.get("hub", {})
            # Data sets of the Hub that are known are not read again.
            self._unread = {
                name: before[name] for name, known in self.corpora.known.items() if earlier.get(name) == known
            }
            now = self.identity | {"static_masks": static_masks}
            not_seen = ("text", "validation_text") if self.is_sample else ()
            inputs = [name for name in ("text", "validation_text", "tokenizer") if name not in not_seen]
            found = [f"the {name.replace('_', ' ')} is another" for name in inputs if before.get(name) != now.get(name)]
            apart = (*inputs, *not_seen, "show_text")
            rest = [{k: v for k, v in identity.items() if k not in apart} for identity in (before, now)]
            found += command_line.differences(*rest)
            # What shows less than it may is as good; the other way text would stay where none may be.
            if not found and now.get("show_text") == "no" != before.get("show_text"):
                raise PrepError(
                    f"{out} was prepared with --show-text yes, so its report and log show text: remove that "
                    "folder, which is prepared again, or leave out --show-text no"
                )
            if found:
                raise PrepError(
                    f"{out} holds a corpus prepared otherwise ({'; '.join(found)}): give another --out, "
                    "or remove that folder"
                )
            return True
        own = (".lock", SHOWN_BY_FINDER)
        is_begun = WorkFolder(out / _WORK).exists()
        if out.exists() and not is_begun and any(entry.name not in own for entry in out.iterdir()):
            raise PrepError(f"{out} is not empty and not a prepared corpus: give another --out")
        return False

    def run(self, executor: Executor | None) -> Split:
        """All steps; returns the fate of the documents."""
        for sentence in self.corpora.fetch(self.work.hub):
            self.note(sentence)
        self._enter_work_folder()
        for sentence in self.corpora.introduction():
            self.note(sentence)
        self._show_first_document()
        documents = self._split()
        tokenizer = self._tokenizer(documents)
        self._encode(documents, tokenizer, executor)
        sources = {"train": self.corpora.corpus_names, "validation": self.corpora.held_out_names}
        num_shown = _EXAMPLES_SHOWN if self.prep.show_text == "yes" else 0
        numbers = assemble(self.out, self.work.blocks, tokenizer, self.examples, self.static_masks, num_shown, sources)
        self._finish(tokenizer, {"corpus": self._corpus_numbers(documents)} | numbers, documents)
        return documents

    def clear_away(self) -> None:
        """Remove what was begun for nothing; a finished vocabulary or block stays, for the next run to use."""
        if not self.work.holds_finished_work():
            self.work.remove()

    def note(self, sentence: str) -> None:
        """Say a sentence and keep it, with the time, for the log."""
        say(sentence)
        self.log.append(f"{time.monotonic() - self.started:8.1f} s  {sentence}")

    def _enter_work_folder(self) -> None:
        if self.work.belongs_to(self.identity):
            self.note("Going on with an interrupted preparation.")
            return
        if self.work.is_begun():
            self.note(
                "An interrupted preparation of other text or settings, or a damaged one, is replaced; what it finished "
                "of the same text and settings is used."
            )
            # What it may have written beside its work folder must not get among ours.
            for name in _FOLDERS:
                shutil.rmtree(self.out / name, ignore_errors=True)
        self.work.begin(self.identity)

    def _show_first_document(self) -> None:
        document = next(iter(self.corpora.corpus.documents()), None)
        if document is None:
            raise PrepError(f"there is no text in {self.corpora.corpus_names}: give files with text in them")
        first = f"The first document ({document.source}, {len(document.lines):,} lines)"
        if self.prep.show_text == "no":
            self.note(f"{first} is not shown.")
            return
        text = " / ".join(document.lines)
        shown = text if len(text) <= 160 else f"{text[:80]} ... {text[-80:]}"
        self.note(f"{first}: {shown}")

    def _split(self) -> Split:
        corpora = self.corpora
        rules = SplitRules(self.prep.near_duplicates, self.prep.group_by, is_sample=self.is_sample)
        path = self.work.documents
        signatures = None if rules.near_duplicates == "keep" else self.work.signatures
        if corpora.validation_corpus:
            self.num_validation = record_documents(corpora.documents_of(corpora.validation_corpus, "reading"), path)
            if not self.num_validation:
                raise PrepError(
                    f"there is no text in {corpora.held_out_names} to evaluate on: give files with text in them"
                )
        count = record_documents(corpora.documents("reading"), path, self.checks, signatures)
        signed = read_signatures(signatures) if signatures else None
        documents = split_documents(read_records(path), self.examples.longest, self.num_validation, rules, signed)
        if signatures:
            # Several times as large as the records, and of no further use.
            del signed
            signatures.unlink()
        if count > self.num_validation > 0 and not (documents.role == TRAIN).any():
            raise PrepError(
                f"every document of {corpora.corpus_names} is also in {corpora.held_out_names}, or a near "
                "duplicate of one there, so nothing is left to learn from: give another --validation-corpus, or none"
            )
        self.note(
            f"Read {count:,} documents, {documents.bytes / 1e6:,.2f} MB of text; {documents.num_duplicates:,} exact "
            f"duplicates dropped; {documents.held_out_bytes / 1e6:,.2f} MB held out for evaluation."
        )
        if cuts := sum(corpus.cuts for corpus in corpora.opened):
            self.note(
                f"A document went on for {LONGEST_DOCUMENT / 1e6:.0f} million characters in {cuts:,} places, and was "
                "cut there. If it should be several documents, see --document."
            )
        for sentence in documents.sentences():
            self.note(sentence)
        return documents

    def _kept(self, documents: Split, what: str) -> Iterator[tuple[int, str, Document]]:
        """Every document that is used: its index, its part, itself. A document that is cut comes twice."""
        for index, document in enumerate(self.corpora.documents(what)):
            if index == documents.cut_document:
                head, tail = self._cut(document, documents.cut_share)
                yield index, "train", head
                yield index, "validation", tail
            elif documents.role[index] in (TRAIN, VALIDATION):
                yield index, PARTS[int(documents.role[index] == VALIDATION)], document

    def _cut(self, document: Document, share: float) -> tuple[Document, Document]:
        """A document's first sentences, to learn from, and its last, to evaluate on."""
        sentences = split(document.lines, self.prep.language, document.line)
        behind = np.cumsum([len(sentence.encode()) for sentence in reversed(sentences)])
        # That many sentences come nearest to the share.
        held_out = 1 + int(np.abs(behind[:-1] - share * behind[-1]).argmin()) if len(sentences) > 1 else 1
        if held_out >= len(sentences):
            length = sum(map(len, document.lines))
            but = " but copies in the beginning, which is what a dry run reads" if self.is_sample else ""
            raise PrepError(
                f"{document.source} is all there is{but}, and one sentence of {length:,} characters, of "
                "which nothing can be held out: put its sentences on lines of their own, or a blank line between its "
                "documents"
            )
        return replace(document, lines=sentences[:-held_out]), replace(document, lines=sentences[-held_out:])

    def _tokenizer(self, documents: Split) -> WordPieceTokenizer:
        if self.given_tokenizer and not self.prep.extend_vocab:
            return self.given_tokenizer
        made_of = {name: value for name, value in self.identity.items() if name != "static_masks"}
        made_of |= {"version": VOCABULARY_VERSION, "packages": packages()}
        train = partial(self._make_tokenizer, documents)
        return self.work.tokenizer(train, self.examples.longest, made_of)

    def _make_tokenizer(self, documents: Split) -> WordPieceTokenizer:
        def taught_by() -> Iterator[Document]:
            for index, part, document in self._kept(documents, "vocabulary"):
                if part == "train" and documents.in_vocabulary[index]:
                    yield document

        given, prep = self.given_tokenizer, self.prep
        if self.is_sample and self.corpora.share_read != 1.0:
            made = tokenizer_of_sample(prep, given, taught_by, self.corpora.share_read or 1.0)
        elif given:
            made = extended_tokenizer(prep, given, taught_by)
        else:
            made = trained_tokenizer(prep, taught_by)
        # All the words of the corpus were in memory.
        give_back()
        if given:
            self.note(f"Added {prep.extend_vocab:,} word pieces to the {given.vocab_size:,} of the tokenizer.")
        else:
            self.note(f"Trained a vocabulary of {made.vocab_size:,} word pieces.")
        return made

    def _encode(self, documents: Split, tokenizer: WordPieceTokenizer, executor: Executor | None) -> None:
        kept = ((part, document) for _, part, document in self._kept(documents, "encoding"))
        from joblib import cpu_count

        # As many as affinity and the quota of a container leave.
        workers = self.prep.workers if isinstance(self.prep.workers, int) else cpu_count()
        own = executor is None
        # A single block is encoded before a process has started.
        executor = executor or (ThreadPoolExecutor(1) if documents.bytes <= BLOCK_BYTES else process_pool(workers))
        try:
            with_what = (tokenizer, self.prep.language)
            submit = submitter(executor, *with_what)
            found = encode(cut_blocks(kept), self.work.blocks, submit, 2 * workers, digester(*with_what))
        finally:
            if own:
                executor.shutdown(cancel_futures=True)
        if found:
            self.note(f"{found} blocks were encoded before the interruption.")

    def _corpus_numbers(self, documents: Split) -> dict:
        records = read_records(self.work.documents)
        return corpus_numbers(self.corpora, documents, records, self.num_validation, self.checks)

    def _finish(self, tokenizer: WordPieceTokenizer, facts: dict, documents: Split) -> None:
        is_vocabulary_given = self.given_tokenizer is not None
        facts["warnings"] = warnings(facts, is_vocabulary_given)
        if not self.is_sample:
            facts["warnings"] += [*documents.warnings(), *warnings_of_size(facts, is_vocabulary_given)]
        # An interrupted run may have left a half-written file in it, under a name of its own.
        shutil.rmtree(self.out / "tokenizer", ignore_errors=True)
        tokenizer.save(self.out / "tokenizer", self.examples.longest)
        write_json(self.out / "prep_report.json", facts)
        write_text(self.out / "prep_report.md", markdown(facts))
        for warning in facts["warnings"]:
            self.note(f"Warning: {warning}")
        train = facts["train"]
        self.note(
            f"Prepared {train['tokens']:,} tokens in {train['documents']:,} documents, {facts['pairs']['examples']:,} "
            f"examples of up to {self.examples.longest} tokens ({facts['pairs']['fill']:.0%} full)"
            + ("." if self.is_sample else f"; see {self.out / 'prep_report.md'}.")
        )
        write_text(self.out / LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n" + "\n".join(self.log) + "\n")
        files = [path for name in _FOLDERS for path in (self.out / name).rglob("*")]
        ours = [*(path.relative_to(self.out).as_posix() for path in files), *_FILES]
        seal(self.out, self._manifest(tokenizer, facts), sorted(ours))
        self.work.remove()

    def _manifest(self, tokenizer: WordPieceTokenizer, facts: dict) -> dict:
        data = [file_digest(next((self.out / part).glob("*.arrow"))) for part in PARTS]
        digest = hashlib.blake2b("".join([*data, tokenizer.digest()]).encode(), digest_size=16).hexdigest()
        return {
            "digest": digest,
            "identity": self.identity,
            **({"hub": self.corpora.known} if self.corpora.known else {}),
            "tokenizer": tokenizer.digest(),
            "pairs": PAIRS_VERSION,
            "next_sentence": facts["pairs"]["next"] > 0,
            "train": facts["train"],
            "validation": facts["validation"],
        }
