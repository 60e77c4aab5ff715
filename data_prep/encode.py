"""Documents to token ids, block by block, on a `concurrent.futures` executor.

Blocks (2 million characters of text) are the unit of work and of resuming. Document order and size decide where one
ends, not the workers, so the ids come out the same for any number of processes.
"""

import hashlib
import multiprocessing.context
import os
import signal
import socket
import sys
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from types import ModuleType

import numpy as np

from .durable import Damaged, check_files, exists, file_facts, read_sealed, write_sealed
from .errors import UserError
from .text.corpus import Document
from .text.sentences import split
from .vocabulary.wordpiece import WordPieceTokenizer

BLOCK_BYTES = 2_000_000
# Raise it when other ids come out of the same text and tokenizer: what an earlier version left unfinished is not used.
VERSION = 2
_SENTENCES_AT_ONCE = 4_096


@dataclass(frozen=True)
class TextBlock:
    """Consecutive documents of one part, each given by its lines, and what their lines are (see `sentences.split`)."""

    line_rule: str
    documents: list[list[str]]


@dataclass(frozen=True)
class Block:
    """Encoded documents: ids [tokens], tokens of each sentence, sentences of each document; words and bytes of text."""

    ids: np.ndarray
    sentence_lengths: np.ndarray
    document_sentences: np.ndarray
    words: int
    bytes: int

    def save(self, path: Path, made_of: str) -> None:
        """Write the file, then the seal beside it, which says what the block was made of."""
        np.savez(path, **asdict(self))
        seal = {"made_of": made_of, "files": file_facts(path.parent, [path.name])}
        write_sealed(path.with_suffix(".json"), seal)

    @staticmethod
    def check(path: Path) -> str:
        """What a block was made of. Raises Damaged for a file that is not, byte for byte, what `save` wrote."""
        seal = read_sealed(path.with_suffix(".json"))
        if seal.keys() != {"made_of", "files"}:
            raise Damaged(f"{path} was written by another version")
        check_files(path.parent, seal["files"])
        return seal["made_of"]

    @classmethod
    def load(cls, path: Path) -> "Block":
        """Open a block. Raises Damaged as `check` does."""
        cls.check(path)
        with np.load(path, allow_pickle=False) as arrays:
            whole = {name: arrays[name] for name in arrays.files}
        return cls(**whole | {"words": int(whole["words"]), "bytes": int(whole["bytes"])})


@cache
def software() -> str:
    """What decides, besides text and tokenizer, what becomes of a block: this program, and what it computes with."""
    own = hashlib.blake2b(digest_size=4)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        own.update(path.read_bytes())
    return f"data_prep {own.hexdigest()}, {packages()}"


def packages() -> str:
    """What others wrote and text is cut with: another version may cut the same text otherwise."""
    versions = [f"{name} {version(name)}" for name in ("sentencex", "tokenizers")]
    return ", ".join([*versions, f"Unicode {unicodedata.unidata_version}"])


def encode_for(asking: str, tokenizer: WordPieceTokenizer, block: TextBlock, language: str) -> Block:
    """`encode_block` in another process, perhaps on another machine.

    Args:
        asking: the `software` of the process that asks for it.

    Raises:
        UserError: this process has other software.
    """
    if asking != software():
        raise UserError(
            f"the worker on {socket.gethostname()} has other software ({software()}) than the process that prepares "
            f"({asking}), and may cut text otherwise: install the same versions on all machines"
        )
    return encode_block(tokenizer, block, language)


def encode_block(tokenizer: WordPieceTokenizer, block: TextBlock, language: str) -> Block:
    """Sentences and ids of documents. Sentences without a token are left out."""
    documents = block.documents
    sentences_of = [split(lines, language, block.line_rule) for lines in documents]
    sentences = list(chain.from_iterable(sentences_of))
    owner = np.repeat(np.arange(len(documents)), [len(s) for s in sentences_of])
    dtype = id_dtype(tokenizer.vocab_size)
    parts, lengths = [], []
    for start in range(0, len(sentences), _SENTENCES_AT_ONCE):
        encoded = tokenizer.encode(sentences[start : start + _SENTENCES_AT_ONCE])
        lengths += map(len, encoded)
        parts.append(np.fromiter(chain.from_iterable(encoded), dtype=dtype))
    length = np.array(lengths, dtype=np.int32)
    per_document = np.bincount(owner[length > 0], minlength=len(documents)).astype(np.int32)
    words = sum(len(sentence.split()) for sentence in sentences)
    size = sum(len(line.encode("utf-8", "surrogatepass")) for lines in documents for line in lines)
    ids = np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
    return Block(ids, length[length > 0], per_document[per_document > 0], words, size)


def id_dtype(vocab_size: int) -> np.dtype:
    """uint16 where every id fits, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def cut_blocks(
    documents: Iterable[tuple[str, Document]], block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[str, TextBlock]]:
    """Cut documents, each with the name of its part, into blocks of consecutive documents of one part.

    A block is given away, with its part's name, as soon as it holds `block_bytes` characters, or the next document has
    another rule of lines.
    """
    blocks: dict[str, TextBlock] = {}
    sizes: dict[str, int] = {}
    for part, document in documents:
        if part in blocks and blocks[part].line_rule != document.line:
            yield part, blocks.pop(part)
            del sizes[part]
        blocks.setdefault(part, TextBlock(document.line, [])).documents.append(document.lines)
        sizes[part] = sizes.get(part, 0) + sum(map(len, document.lines))
        if sizes[part] >= block_bytes:
            yield part, blocks.pop(part)
            del sizes[part]
    yield from blocks.items()


class BlockStore:
    """The encoded blocks of a preparation under way: `train-00000.npz`, `validation-00000.npz`, ..., each sealed."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, part: str, number: int) -> Path:
        return self.folder / f"{part}-{number:05d}.npz"

    def holds(self, path: Path, made_of: str) -> bool:
        """Whether a block is there, whole, and made of this."""
        try:
            return Block.check(path) == made_of
        except Damaged:
            return False

    def remove_after(self, part: str, count: int) -> None:
        """Remove what an earlier preparation, of more text, has beyond the first `count` blocks of a part."""
        for path in (*self.folder.glob(f"{part}-*.npz"), *self.folder.glob(f"{part}-*.json")):
            number = path.stem.rpartition("-")[2]
            if number.isdecimal() and int(number) >= count:
                path.unlink()

    def parts(self) -> set[str]:
        """The names of the parts that have blocks here."""
        return {path.stem.rpartition("-")[0] for path in self.folder.glob("*-*")}

    def blocks(self, part: str) -> Iterator[Block]:
        """The blocks of a part, in order. Raises Damaged for one that is not as it was written."""
        number = 0
        while exists(path := self.path(part, number)):
            yield Block.load(path)
            number += 1


def encode(
    blocks: Iterable[tuple[str, TextBlock]],
    store: BlockStore,
    submit: Callable[[TextBlock], "Future[Block]"],
    in_flight: int,
    made_of: Callable[[TextBlock], str],
) -> int:
    """Encode blocks and keep each in the store; blocks that are there, whole, are not encoded again.

    Args:
        blocks: as `cut_blocks` gives them.
        submit: hands a block to an executor.
        in_flight: how many blocks may be under way at once (bounds the memory).
        made_of: a digest of all that decides what becomes of a block (see `digester`).

    Returns:
        How many blocks were found done.

    Raises:
        UserError: a worker process ended.
    """
    try:
        return _encode(blocks, store, submit, in_flight, made_of)
    except Exception as error:
        # Dask has errors of its own for it.
        if not isinstance(error, BrokenExecutor | CancelledError) and not _is_of(error, "distributed"):
            raise
        raise UserError(
            "a worker process ended while it encoded (killed, or out of memory): give the same command again to go on, "
            "with fewer --workers"
        ) from error


def _is_of(error: Exception, package: str) -> bool:
    return type(error).__module__.partition(".")[0] == package


def _encode(blocks, store: BlockStore, submit, in_flight: int, made_of) -> int:
    waiting: list[tuple[Path, str, Future[Block]]] = []
    counts: Counter[str] = Counter()
    found = 0
    for part, block in blocks:
        path, digest = store.path(part, counts[part]), made_of(block)
        counts[part] += 1
        if store.holds(path, digest):
            found += 1
            continue
        if len(waiting) >= in_flight:
            _keep(*waiting.pop(0))
        waiting.append((path, digest, submit(block)))
    for each in waiting:
        _keep(*each)
    for part in store.parts():
        store.remove_after(part, counts[part])
    return found


def _keep(path: Path, made_of: str, future: "Future[Block]") -> None:
    future.result().save(path, made_of)


def digester(tokenizer: WordPieceTokenizer, language: str) -> Callable[[TextBlock], str]:
    """`made_of` for `encode`: a digest of a block's text and of all that `submitter` encodes it with."""
    common = f"{VERSION} {packages()} {tokenizer.digest()} {language}"

    def made_of(block: TextBlock) -> str:
        state = hashlib.blake2b(f"{common} {block.line_rule}".encode(), digest_size=16)
        for lines in block.documents:
            # No line holds a line feed, and none is empty.
            state.update(("\n".join(lines) + "\n\n").encode("utf-8", "surrogatepass"))
        return state.hexdigest()

    return made_of


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Worker processes that encode with one thread each, and end when this process does, however it ends."""
    return ProcessPoolExecutor(workers, mp_context=_Context(), initializer=_begin)


class _Worker(multiprocessing.context.SpawnProcess):
    """A new process that does not run the main script again, which so needs no `if __name__ == "__main__"`."""

    def start(self) -> None:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _Context(multiprocessing.context.SpawnContext):
    Process = _Worker


def _begin() -> None:
    """A worker of a killed process would wait for its next block for ever: it holds both ends of the queue.

    A Ctrl-C and the end of a terminal, which all processes are told of, are the parent's matter.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def submitter(
    executor: Executor, tokenizer: WordPieceTokenizer, language: str
) -> Callable[[TextBlock], "Future[Block]"]:
    """`submit` for `encode`: blocks go to a pool of processes or threads, or to Dask's
    `client.get_executor(pure=False)`, where a call that failed can be made again."""
    return lambda block: executor.submit(encode_for, software(), tokenizer, block, language)
