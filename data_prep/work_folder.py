"""What a preparation under way keeps, so that it goes on where it was stopped: vocabulary and encoded blocks.

    identity.json       what is prepared from what
    documents.bin       a record of each document; written anew by every run
    tokenizer/, .json   the vocabulary, and its seal
    blocks/             encoded text, a file and its seal a block

A seal is written after what it seals. So whatever was cut short, by a kill, a power cut or a full disk, or is damaged
since, is known and made again.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from .encode import BlockStore
from .sealed import Damaged, check_files, file_facts, read_sealed, write_sealed
from .wordpiece import WordPieceTokenizer


class WorkFolder:
    """The folder of one preparation under way."""

    def __init__(self, path: Path):
        self.path = path

    def exists(self) -> bool:
        return self.path.exists()

    def begin(self, identity: dict) -> None:
        """Start empty."""
        self.remove()
        self.path.mkdir(parents=True)
        write_sealed(self.path / "identity.json", identity)

    def belongs_to(self, identity: dict) -> bool:
        """Whether what is here was made for the same text and settings."""
        try:
            return read_sealed(self.path / "identity.json") == identity
        except Damaged:
            return False

    @property
    def documents(self) -> Path:
        return self.path / "documents.bin"

    @property
    def blocks(self) -> BlockStore:
        return BlockStore(self.path / "blocks")

    def tokenizer(self, train: Callable[[], WordPieceTokenizer], model_max_length: int) -> WordPieceTokenizer:
        """The tokenizer that is here whole, or else the one that `train` gives."""
        folder, seal = self.path / "tokenizer", self.path / "tokenizer.json"
        try:
            check_files(folder, read_sealed(seal))
        except Damaged:
            shutil.rmtree(folder, ignore_errors=True)
            train().save(folder, model_max_length)
            write_sealed(seal, file_facts(folder, sorted(path.name for path in folder.iterdir())))
        return WordPieceTokenizer.load(folder)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
