"""Small real objects that several test files build on. Session-wide, so that hypothesis may use them."""

import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from matplotlib.figure import Figure

from data_prep.prepared import Shard
from data_prep.text import builtin
from data_prep.vocabulary.wordpiece import SPECIAL_TOKENS, WordPieceTokenizer

# The processes of a test run share the cores; read when torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where there are several threads, those that wait leave the core to others.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
# What a shell without job control starts in the background ignores SIGINT, and so would all that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Do not wait for the disk: no test survives a power cut. Processes that a test starts do wait.
os.fsync = lambda descriptor: None
vars(fcntl).pop("F_FULLFSYNC", None)
# To draw takes longer than most runs of a test; see `pictures`.
_draw, Figure.savefig = Figure.savefig, lambda figure, path, **_: path.write_bytes(b"\x89PNG, not drawn")
# No network and no deadline: tests run on machines without the one and busy with other things.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Nothing is left in the home of whoever runs the tests, which may not be writable.
_CACHE = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
os.environ["HF_DATASETS_CACHE"] = _CACHE.name
# Half of what is usual, for the time it takes; each run draws others.
settings.register_profile("patient", deadline=None, max_examples=50)
settings.load_profile("patient")

_WORDS = "the heart rate of a patient was measured before and after treatment with drug level change rise".split()
# Of slow tests those that share what took long to make.
_TOGETHER = (
    "test_trace_gpu.py", "test_builtin.py", "test_archives.py", "test_from_python.py", "test_benchmarks.py",
    "test_similarity.py", "test_electra.py", "test_distillation.py", "test_albert.py",
)  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Divides slow tests one by one, as half of them stand in one file, and the others by files; those whose processes
    are forked stay together, as what they are forked from takes long to make."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    is_slow = config.option.markexpr == "slow"

    class Divided(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if "/faults/" in file or (is_slow and "::test_two_processes" in nodeid):
                return "forked"
            return nodeid if is_slow and not file.endswith(_TOGETHER) else file

    return Divided(config, log)


@pytest.fixture(scope="module")
def pictures():
    """In this module pictures are drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", _draw)
        yield


LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,[]"
WORDS = ("the", "of", "heart", "rate", "patient", "was", "stable", "##s", "##ing", "##ly", "##ed", "mask")


@pytest.fixture(scope="session")
def small_modules() -> tuple:
    """Those of two small packages."""
    root = Path(builtin.__file__).parents[2]
    packages = [("prep", root / "data_prep"), ("model", root / "model")]
    return tuple(module for name, folder in packages for module in builtin._package(name, f"{name}.", folder))


@pytest.fixture
def small_builtin(small_modules, monkeypatch) -> None:
    """The built-in corpus of two small packages: reading all of them takes a while."""
    monkeypatch.setattr(builtin, "_modules", lambda: small_modules)


@pytest.fixture(scope="session")
def small_tokenizer() -> WordPieceTokenizer:
    """Lower-casing, 100 entries: specials, two unused slots, letters, continuing letters, a few words."""
    pieces = dict.fromkeys([*SPECIAL_TOKENS, "[unused0]", "[unused1]", *LETTERS, *(f"##{c}" for c in LETTERS), *WORDS])
    return WordPieceTokenizer(list(pieces), lowercase=True, strip_accents=False)


@pytest.fixture(scope="session")
def shard_of() -> Callable[..., Shard]:
    """(tokens of each sentence of each document, ids, index) -> a shard; without ids they are all 0."""

    def make(documents: list[list[int]], ids: np.ndarray | None = None, index: int = 0) -> Shard:
        sentence_starts = np.cumsum([0, *(length for lengths in documents for length in lengths)])
        document_starts = np.cumsum([0, *map(len, documents)])
        if ids is None:
            ids = np.zeros(sentence_starts[-1], dtype=np.uint16)
        return Shard(index, ids, sentence_starts.astype(np.int32), document_starts.astype(np.int32))

    return make


@pytest.fixture(scope="session")
def random_corpus(tmp_path_factory) -> Path:
    """A text of 50 documents of eight sentences, of words drawn at random."""
    draw, path = np.random.default_rng(0), tmp_path_factory.mktemp("random") / "notes.txt"
    lines = [" ".join(draw.choice(_WORDS, draw.integers(4, 9))) + " ." for _ in range(400)]
    path.write_text("\n\n".join("\n".join(lines[n : n + 8]) for n in range(0, 400, 8)))
    return path


@pytest.fixture(scope="session")
def random_prepared(random_corpus: Path) -> Path:
    """The same, prepared for sequences of 32 tokens."""
    from data_prep.preparation import prepare
    from data_prep.settings import ExampleSettings, PrepSettings

    settings = PrepSettings(corpus=(str(random_corpus),), workers=1)
    return prepare(settings, ExampleSettings(sequence_length=32), random_corpus.parent / "prepared").folder


@pytest.fixture
def stopped_at(tmp_path) -> Callable[[Path, int], Path]:
    """(a finished run, a step) -> a copy, as it was when that step had been saved."""

    def make(run: Path, step: int) -> Path:
        stopped = shutil.copytree(run, tmp_path / "stopped")
        shutil.rmtree(stopped / "final")
        (stopped / "results.json").unlink()
        for checkpoint in (stopped / "checkpoints").iterdir():
            if int(checkpoint.name.removeprefix("step-")) > step:
                shutil.rmtree(checkpoint)
        assert (stopped / "checkpoints" / f"step-{step:08d}").is_dir()
        return stopped

    return make


@pytest.fixture
def two_processes(tmp_path, monkeypatch) -> Callable[[str, list[str]], str]:
    """(module, arguments) -> what `main` of the module prints in two processes, started as torchrun starts them."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("processes are found by what /proc says of them")
    monkeypatch.syspath_prepend(Path(__file__).parent / "faults")
    from lives import Forked

    def run(module: str, arguments: list[str]) -> str:
        with Forked(module, arguments, tmp_path / "two.log", processes=2) as life:
            assert life.wait() == 0, life.err
            return life.out

    return run


@pytest.fixture(scope="session")
def example_data() -> Path:
    """The folder with the example data sets; tests that need it are skipped where it is not."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no example data sets beside the repository ({folder.name})")
    return folder


_TEXTS = [
    f"The {a} of the patient's {b}, don't {c}: {n}.\n" for n, (a, b, c) in enumerate(
        [("rate", "heart", "mask"), ("mask", "rate", "stop"), ("heart", "number", "wait"), ("café", "rates", "go")] * 30
    )
]  # fmt: skip


@pytest.fixture(scope="session")
def other_encoder(small_tokenizer: WordPieceTokenizer, tmp_path_factory) -> Callable[[str], Path]:
    """model_type -> a folder as transformers leaves it: 2 layers x 32, up to 48 tokens, with a small tokenizer."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("other") / f"a-{kind}"
            _write_encoder(kind, made[kind], small_tokenizer)
        return made[kind]

    return make


def _write_encoder(kind: str, folder: Path, small_tokenizer: WordPieceTokenizer) -> None:
    import torch
    import transformers

    folder.mkdir(parents=True)
    counts_from_padding = kind in ("roberta", "xlm-roberta", "camembert")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if counts_from_padding else (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])  # fmt: skip
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    if kind == "distilbert":
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    sizes |= {"initializer_range": 0.2, "max_position_embeddings": 50 if counts_from_padding else 48}
    if kind not in ("distilbert", "modernbert"):
        sizes |= {"type_vocab_size": {"albert": 2, "electra": 2, "deberta-v2": 0}.get(kind, 1)}
    if kind in ("albert", "electra"):
        sizes |= {"embedding_size": 16}
    if kind == "modernbert":
        # A narrow window, and an activation that tells of a head.
        sizes |= {"local_attention": 8, "global_attn_every_n_layers": 2}
    if kind == "deberta-v2":
        sizes |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
                  "max_relative_positions": 48, "position_biased_input": False}  # fmt: skip
    if kind in ("distilbert", "electra"):
        small_tokenizer.save(folder, 48)
        size = small_tokenizer.vocab_size
        if kind == "distilbert":
            path = folder / "tokenizer_config.json"
            said = json.loads(path.read_text()) | {"model_input_names": ["input_ids", "attention_mask"]}
            path.write_text(json.dumps(said | {"tokenizer_class": "DistilBertTokenizer"}))
    else:
        size = _write_tokenizer(kind, folder, tokens)
    ids = dict(zip(("bos", "pad", "eos") if counts_from_padding else ("pad",), range(3), strict=False))
    ids |= {"cls": 2, "sep": 3, "bos": 2, "eos": 3} if kind == "modernbert" else {}
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=size, **sizes, **{f"{name}_token_id": number for name, number in ids.items()}
    )
    torch.manual_seed(0)
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(folder)


def _write_tokenizer(kind: str, folder: Path, tokens: list[str]) -> int:
    """Byte-level BPE, or a unigram model of SentencePiece; returns the number of its entries."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    first, second = ("<s>", "</s>") if "<s>" in tokens else ("[CLS]", "[SEP]")
    unknown = next(token for token in tokens if "unk" in token.lower())
    if kind in ("roberta", "modernbert"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=320, special_tokens=tokens, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
        )
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=tokens, unk_token=unknown)
    tokenizer.train_from_iterator(_TEXTS, trainer)
    twice, of_b = (second, ":0") if "<s>" in tokens else ("", ":1")
    pair = [f"{first}:0", "$A:0", f"{second}:0", *([f"{twice}:0"] if twice else []), f"$B{of_b}", f"{second}{of_b}"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {second}:0", pair=" ".join(pair),
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (first, second)],
    )  # fmt: skip
    if kind == "roberta":
        # As the folders of RoBERTa: transformers puts the tokenizer together out of these.
        tokenizer.model.save(str(folder))
        said = {"tokenizer_class": "RobertaTokenizer", "model_max_length": 48}
        (folder / "tokenizer_config.json").write_text(json.dumps(said))
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
        return tokenizer.get_vocab_size()
    named = {f"{name.strip('<[]>').lower()}_token": name for name in tokens if name not in ("<s>", "</s>")}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token=first, sep_token=second, model_max_length=48,
        **{name: token for name, token in named.items() if name not in ("cls_token", "sep_token")},
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
    if kind == "albert":
        path = folder / "tokenizer_config.json"
        said = json.loads(path.read_text()) | {"tokenizer_class": "AlbertTokenizer"}
        path.write_text(json.dumps(said))
    return tokenizer.get_vocab_size()


@pytest.fixture
def unread(monkeypatch):
    """A context in which nobody reads standard output any more: it yields the stream."""

    @contextmanager
    def context():
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            yield stream

    return context
