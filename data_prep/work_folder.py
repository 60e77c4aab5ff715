"""What a preparation under way keeps, so that it goes on where it was stopped: vocabulary and encoded blocks.

    hub/                data sets of the Hub, a .jsonl.gz file and its seal each
    identity.json       what is prepared from what
    documents.bin       a record of each document, and in signatures.bin what it is compared by, until it has been;
                        every run writes them again
    tokenizer/, .json   the vocabulary, and its seal
    blocks/             encoded text, a file and its seal a block

A seal is written after what it seals, and says what that was made of. So whatever was cut short, by a kill, a power cut
or a full disk, or is damaged since, is known and made again; and what was made of the same text and settings is used
again, also where other text has changed.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from .durable import Damaged, check_files, file_facts, read_sealed, write_sealed
from .encode import BlockStore
from .vocabulary.wordpiece import WordPieceTokenizer


class WorkFolder:
    """The folder of one preparation under way."""

    def __init__(self, path: Path):
        self.path = path

    def exists(self) -> bool:
        return self.path.exists()

    def is_begun(self) -> bool:
        """Whether the folder records what it prepares."""
        return (self.path / "identity.json").exists()

    def begin(self, identity: dict) -> None:
        """What is made from now on is of these settings and this text."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_sealed(self.path / "identity.json", identity)

    def holds_finished_work(self) -> bool:
        """Whether there is a data set, a vocabulary or a block that was finished."""
        finished = ("tokenizer.json", "blocks/*.json", "hub/*.json")
        return any(path for pattern in finished for path in self.path.glob(pattern))

    def belongs_to(self, identity: dict) -> bool:
        """Whether what is here was made for the same text and settings."""
        try:
            return read_sealed(self.path / "identity.json") == identity
        except Damaged:
            return False

    @property
    def hub(self) -> Path:
        return self.path / "hub"

    @property
    def documents(self) -> Path:
        return self.path / "documents.bin"

    @property
    def signatures(self) -> Path:
        return self.path / "signatures.bin"

    @property
    def blocks(self) -> BlockStore:
        return BlockStore(self.path / "blocks")

    def tokenizer(
        self, train: Callable[[], WordPieceTokenizer], model_max_length: int, made_of: dict
    ) -> WordPieceTokenizer:
        """The tokenizer that is here whole and made of this, or else the one that `train` gives."""
        folder, path = self.path / "tokenizer", self.path / "tokenizer.json"
        try:
            seal = read_sealed(path)
            if seal.get("made_of") != made_of:
                raise Damaged(f"{path} is of other text or settings")
            check_files(folder, seal["files"])
        except Damaged:
            path.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            train().save(folder, model_max_length)
            files = file_facts(folder, sorted(path.name for path in folder.iterdir()))
            write_sealed(path, {"made_of": made_of, "files": files})
        return WordPieceTokenizer.load(folder)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
