"""Documents to token ids, block by block, on a `concurrent.futures` executor.

Blocks (about 2 MB of text) are the unit of work and of resuming. They are cut by document order and bytes, never by
workers, so the ids come out the same for any number of processes.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from .corpus import Document
from .errors import UserError
from .sealed import Damaged, check_files, file_facts, read_sealed, write_sealed
from .sentences import split
from .wordpiece import WordPieceTokenizer

BLOCK_BYTES = 2_000_000
_SENTENCES_AT_ONCE = 4_096


@dataclass(frozen=True)
class Block:
    """Encoded documents: ids [tokens], tokens of each sentence, sentences of each document; words and bytes of text."""

    ids: np.ndarray
    sentence_lengths: np.ndarray
    document_sentences: np.ndarray
    words: int
    bytes: int

    def save(self, path: Path) -> None:
        """Write the file, then the seal beside it."""
        np.savez(path, **asdict(self))
        write_sealed(path.with_suffix(".json"), file_facts(path.parent, [path.name]))

    @staticmethod
    def check(path: Path) -> None:
        """Raise Damaged for a file that is not, byte for byte, what `save` wrote."""
        check_files(path.parent, read_sealed(path.with_suffix(".json")))

    @classmethod
    def load(cls, path: Path) -> "Block":
        """Open a block. Raises Damaged as `check` does."""
        cls.check(path)
        with np.load(path, allow_pickle=False) as arrays:
            whole = {name: arrays[name] for name in arrays.files}
        return cls(**whole | {"words": int(whole["words"]), "bytes": int(whole["bytes"])})


def encode_block(
    tokenizer: WordPieceTokenizer, documents: list[list[str]], line_rule: str, language: str
) -> Block:
    """Sentences and ids of documents, each given by its lines. Sentences without a token are left out."""
    sentences_of = [split(lines, language, line_rule) for lines in documents]
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
) -> Iterator[tuple[str, list[list[str]]]]:
    """Cut documents, each with the name of its part, into blocks of consecutive documents of one part.

    A block is given away, with its part's name, as soon as it holds `block_bytes` characters.
    """
    blocks: dict[str, list[list[str]]] = {}
    sizes: dict[str, int] = {}
    for part, document in documents:
        blocks.setdefault(part, []).append(document.lines)
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

    def holds(self, path: Path) -> bool:
        """Whether a block is there, whole."""
        try:
            Block.check(path)
        except Damaged:
            return False
        return True

    def blocks(self, part: str) -> Iterator[Block]:
        """The blocks of a part, in order. Raises Damaged for one that is not as it was written."""
        number = 0
        while (path := self.path(part, number)).exists():
            yield Block.load(path)
            number += 1


def encode(
    blocks: Iterable[tuple[str, list[list[str]]]],
    store: BlockStore,
    submit: Callable[[str, list[list[str]]], "Future[Block]"],
    in_flight: int,
) -> int:
    """Encode blocks and keep each in the store; blocks that are there, whole, are not encoded again.

    Args:
        blocks: as `cut_blocks` gives them.
        submit: hands a block, given after the name of its part, to an executor.
        in_flight: how many blocks may be under way at once (bounds the memory).

    Returns:
        How many blocks were found done.

    Raises:
        UserError: a worker process ended.
    """
    try:
        return _encode(blocks, store, submit, in_flight)
    except BrokenExecutor as error:
        raise UserError(
            "a worker process ended while it encoded (killed, or out of memory): give the same command again to go on, "
            "with fewer --workers"
        ) from error


def _encode(blocks, store: BlockStore, submit, in_flight: int) -> int:
    waiting: list[tuple[Path, Future[Block]]] = []
    numbers: dict[str, int] = {}
    found = 0
    for part, block in blocks:
        number = numbers[part] = numbers.get(part, -1) + 1
        path = store.path(part, number)
        if store.holds(path):
            found += 1
            continue
        if len(waiting) >= in_flight:
            _keep(*waiting.pop(0))
        waiting.append((path, submit(part, block)))
    for path, future in waiting:
        _keep(path, future)
    return found


def _keep(path: Path, future: "Future[Block]") -> None:
    future.result().save(path)


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Worker processes that encode with one thread each, and end when this process does, however it ends."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """A worker of a killed process would wait for its next block for ever: it holds both ends of the queue.

    A Ctrl-C, which the terminal sends to all processes, is the parent's matter.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def submitter(
    executor: Executor, tokenizer: WordPieceTokenizer, line_rules: Mapping[str, str], language: str
) -> Callable[[str, list[list[str]]], "Future[Block]"]:
    """`submit` for `encode`: blocks go to a process pool, a thread pool, or Dask's `client.get_executor()`.

    `line_rules` says for each part what its lines are (see `sentences.split`).
    """
    return lambda part, block: executor.submit(encode_block, tokenizer, block, line_rules[part], language)
