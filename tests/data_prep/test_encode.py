"""Encoding block by block: the same ids for any number of workers, resumed where it stopped, joined."""

import multiprocessing
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import encode as module
from data_prep.assembly import Totals, assemble_shards
from data_prep.durable import Damaged
from data_prep.encode import (
    Block,
    BlockStore,
    TextBlock,
    cut_blocks,
    digester,
    encode,
    encode_block,
    encode_for,
    id_dtype,
    software,
    submitter,
)
from data_prep.errors import UserError
from data_prep.text.corpus import Document
from data_prep.vocabulary.wordpiece import WordPieceTokenizer

BLOCK_BYTES = 400
INVISIBLE = "\u200b"
NAMES = ("ids", "sentence_lengths", "document_sentences", "words", "bytes")


def made_up_documents(count: int) -> list[tuple[str, Document]]:
    """(part, document), a tenth of them held out; some lines have nothing that becomes a token."""
    draw = np.random.default_rng(5)
    words = ["the", "heart", "rate", "Patients", "was", "stable", "mask", INVISIBLE, "42.7", "schön"]
    found = []
    for number in range(count):
        lines = [" ".join(draw.choice(words, draw.integers(1, 12))) for _ in range(draw.integers(1, 8))]
        found.append(("validation" if number % 10 == 0 else "train", Document(lines, f"d:{number}", None)))
    return found


def as_lists(block: Block) -> dict:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(block).items()}


def run(store: BlockStore, executor: Executor, tokenizer, documents, in_flight: int = 4) -> int:
    blocks = cut_blocks(documents, BLOCK_BYTES)
    return encode(blocks, store, submitter(executor, tokenizer, "en"), in_flight, digester(tokenizer, "en"))


def contents(store: BlockStore) -> dict[str, list[dict]]:
    return {part: [as_lists(block) for block in store.blocks(part)] for part in ("train", "validation")}


@pytest.fixture(scope="module")
def documents():
    return made_up_documents(120)


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory, small_tokenizer, documents) -> BlockStore:
    store = BlockStore(tmp_path_factory.mktemp("one") / "blocks")
    with ThreadPoolExecutor(1) as executor:
        assert run(store, executor, small_tokenizer, documents) == 0
    return store


def shards_as_lists(store: BlockStore) -> list[tuple]:
    total = Totals.of(store.blocks("train"))
    shards = assemble_shards(store.blocks("train"), total, shard_bytes=3_000)
    return [(s.index, s.ids.tolist(), s.sentence_starts.tolist(), s.document_starts.tolist()) for s in shards]


@pytest.mark.parametrize(("pool", "workers"), [("thread", 2), ("thread", 3), ("process", 2)])
def test_blocks_and_shards_do_not_depend_on_the_workers(
    pool, workers, one_worker, tmp_path, small_tokenizer, documents
):
    if pool == "thread":
        executor = ThreadPoolExecutor(workers)
    else:
        executor = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    store = BlockStore(tmp_path / "blocks")
    with executor:
        run(store, executor, small_tokenizer, documents, in_flight=2 * workers)
    assert contents(store) == contents(one_worker)
    assert shards_as_lists(store) == shards_as_lists(one_worker)
    assert len(shards_as_lists(store)) > 2
    names = sorted(path.name for path in store.folder.iterdir())
    assert names == sorted(path.name for path in one_worker.folder.iterdir())
    for name in names:
        assert (store.folder / name).read_bytes() == (one_worker.folder / name).read_bytes()


@pytest.mark.parametrize("part", ["train", "validation"])
def test_the_ids_are_the_documents_in_order(one_worker, small_tokenizer, documents, part):
    """Sentence by sentence with the tokenizer alone; sentences without a token leave no trace."""
    expected = []
    for owner, document in documents:
        if owner == part:
            sentences = [small_tokenizer.encode([line])[0] for line in document.lines]
            expected.append([sentence for sentence in sentences if sentence])
    shard = next(assemble_shards(one_worker.blocks(part), Totals.of(one_worker.blocks(part))))
    bounds, documents_at = shard.sentence_starts.tolist(), shard.document_starts.tolist()
    sentences = [shard.ids[start:end].tolist() for start, end in zip(bounds[:-1], bounds[1:], strict=True)]
    found = [sentences[start:end] for start, end in zip(documents_at[:-1], documents_at[1:], strict=True)]
    assert found == [document for document in expected if document]
    assert any(INVISIBLE == line for _, document in documents for line in document.lines)


def test_files_of_others_among_the_blocks_stay(tmp_path):
    store = BlockStore(tmp_path / "blocks")
    for name in ("train-00000.npz", "train-00003.npz", "train-00003.json", "train-00000-conflict.json"):
        (store.folder / name).touch()
    store.remove_after("train", 1)
    assert {path.name for path in store.folder.iterdir()} == {"train-00000.npz", "train-00000-conflict.json"}


def test_finished_blocks_are_not_encoded_again(one_worker, tmp_path, small_tokenizer, documents):
    store = BlockStore(tmp_path / "blocks")
    for path in one_worker.folder.iterdir():
        (store.folder / path.name).write_bytes(path.read_bytes())
    total = len(list(store.folder.glob("*.npz")))
    # What a killed run leaves behind.
    unfinished = store.path("train", 3)
    unfinished.write_bytes(unfinished.read_bytes()[:99])
    unfinished.with_suffix(".json").unlink()
    submitted = []
    with ThreadPoolExecutor(2) as executor:
        submit = submitter(executor, small_tokenizer, "en")

        def counted(block):
            submitted.append(block)
            return submit(block)

        made_of = digester(small_tokenizer, "en")
        found = encode(cut_blocks(documents, BLOCK_BYTES), store, counted, 4, made_of)
    assert total > 8
    assert found == total - 1
    blocks = [block for part, block in cut_blocks(documents, BLOCK_BYTES) if part == "train"]
    assert submitted == [blocks[3]]
    assert contents(store) == contents(one_worker)


@pytest.mark.parametrize("changed", ["text", "line", "document", "rule", "tokenizer", "language", "version", "package"])
def test_a_digest_tells_apart_what_is_encoded_otherwise(changed, small_tokenizer, monkeypatch):
    """Two lines are not one, and two documents of a line are not one of two."""
    given, block = [small_tokenizer, "en"], [["heart rate", "was stable"], ["the heart"]]
    before = digester(*given)(TextBlock("sentence", block))
    if changed == "tokenizer":
        given[0] = WordPieceTokenizer([*small_tokenizer.vocabulary, "stab"], lowercase=True, strip_accents=False)
    if changed == "version":
        monkeypatch.setattr("data_prep.encode.VERSION", 0)
    if changed == "package":
        monkeypatch.setattr("data_prep.encode.version", lambda name: "0.1")
    rule = "paragraph" if changed == "rule" else "sentence"
    given[1] = "de" if changed == "language" else "en"
    others = {"text": [["heart rate", "was stale"], ["the heart"]], "line": [["heart rate was stable"], ["the heart"]],
              "document": [["heart rate"], ["was stable", "the heart"]]}  # fmt: skip
    assert digester(*given)(TextBlock(rule, others.get(changed, block))) != before


def test_blocks_beyond_the_last_are_those_of_more_text_and_go(tmp_path, small_tokenizer, documents):
    store = BlockStore(tmp_path / "blocks")
    with ThreadPoolExecutor(1) as executor:
        run(store, executor, small_tokenizer, documents)
        # As many of both parts.
        fewer = documents[:60]
        assert run(store, executor, small_tokenizer, fewer) > 2
        expected = BlockStore(tmp_path / "expected")
        run(expected, executor, small_tokenizer, fewer)
    assert contents(store) == contents(expected)
    only_training = [(part, document) for part, document in fewer if part == "train"]
    with ThreadPoolExecutor(1) as executor:
        run(store, executor, small_tokenizer, only_training)
    assert not contents(store)["validation"]


@pytest.mark.parametrize("in_flight", [1, 3])
def test_no_more_blocks_are_under_way_than_allowed(tmp_path, small_tokenizer, documents, in_flight):
    under_way = most = 0

    class Later:
        """A future that computes when it is asked."""

        def __init__(self, block):
            nonlocal under_way, most
            self.block = block
            under_way += 1
            most = max(most, under_way)

        def result(self):
            nonlocal under_way
            under_way -= 1
            return encode_block(small_tokenizer, self.block, "en")

    store = BlockStore(tmp_path / "blocks")
    encode(cut_blocks(documents, BLOCK_BYTES), store, Later, in_flight, lambda block: "text")
    assert most == in_flight
    assert under_way == 0


def test_a_block_that_fails_stops_the_run_and_keeps_what_is_done(tmp_path, small_tokenizer, documents):
    store = BlockStore(tmp_path / "blocks")
    with ThreadPoolExecutor(1) as executor:
        submit = submitter(executor, small_tokenizer, "en")
        made_of = digester(small_tokenizer, "en")
        submit_bad = submitter(executor, None, "en")
        good = [block for _, block in cut_blocks(documents, BLOCK_BYTES)][:3]

        def fails_after_three(block):
            return submit(block) if block in good else submit_bad(block)

        with pytest.raises(AttributeError):
            encode(cut_blocks(documents, BLOCK_BYTES), store, fails_after_three, 1, made_of)
        done = sorted(path.name for path in store.folder.glob("*.npz"))
        assert done == ["train-00000.npz", "train-00001.npz", "train-00002.npz"]
        assert encode([*cut_blocks(documents, BLOCK_BYTES)], store, submit, 1, made_of) == 3


def test_a_worker_with_other_software_is_refused(small_tokenizer):
    block, mine = TextBlock("sentence", [["the heart"]]), software()
    assert as_lists(encode_for(mine, small_tokenizer, block, "en")) == as_lists(
        encode_block(small_tokenizer, block, "en")
    )
    for other in (mine.replace("sentencex ", "sentencex 0."), mine.replace("data_prep ", "data_prep 0")):
        with pytest.raises(UserError, match="has other software .*install the same versions on all machines"):
            encode_for(other, small_tokenizer, block, "en")


class KilledWorker(Exception):
    """As Dask has it."""

    __module__ = "distributed.scheduler"


@pytest.mark.parametrize("error", [BrokenExecutor(), CancelledError(), KilledWorker()])
def test_a_worker_that_is_lost_ends_the_preparation_in_a_sentence(tmp_path, documents, error):
    lost = Future()
    lost.set_exception(error)
    with pytest.raises(UserError, match="a worker process ended while it encoded"):
        encode(cut_blocks(documents, BLOCK_BYTES), BlockStore(tmp_path), lambda block: lost, 1, lambda block: "text")


def test_a_block_counts_words_bytes_and_sentences(small_tokenizer):
    lines = [["The heart.", INVISIBLE], [INVISIBLE], ["é rate", "was"]]
    block = encode_block(small_tokenizer, TextBlock("sentence", lines), "en")
    vocabulary = small_tokenizer.vocabulary
    assert [vocabulary[i] for i in block.ids] == ["the", "heart", ".", "[UNK]", "rate", "was"]
    assert block.sentence_lengths.tolist() == [3, 2, 1]
    assert block.document_sentences.tolist() == [1, 2]
    # White space separates words; bytes are those of UTF-8.
    assert (block.words, block.bytes) == (7, 10 + 3 + 3 + 7 + 3)
    assert block.ids.dtype == np.uint16


def test_paragraphs_are_split_into_sentences_where_the_rule_of_the_block_says_so(small_tokenizer):
    lines = ["The heart was stable. The rate was 42."]
    with ThreadPoolExecutor(1) as executor:
        submit = submitter(executor, small_tokenizer, "en")
        blocks = {rule: submit(TextBlock(rule, [lines])).result() for rule in ("paragraph", "sentence")}
    assert {rule: len(block.sentence_lengths) for rule, block in blocks.items()} == {"paragraph": 2, "sentence": 1}


def test_the_size_of_the_tokenizers_batches_does_not_show(small_tokenizer, documents, monkeypatch):
    lines = [document.lines for _, document in documents]
    whole = encode_block(small_tokenizer, TextBlock("sentence", lines), "en")
    monkeypatch.setattr(module, "_SENTENCES_AT_ONCE", 7)
    assert as_lists(encode_block(small_tokenizer, TextBlock("sentence", lines), "en")) == as_lists(whole)


@pytest.mark.parametrize("lines", [[], [[INVISIBLE]]])
def test_a_block_without_tokens_is_empty(small_tokenizer, tmp_path, lines):
    block = encode_block(small_tokenizer, TextBlock("sentence", lines), "en")
    assert [len(block.ids), len(block.sentence_lengths), len(block.document_sentences)] == [0, 0, 0]
    block.save(tmp_path / "empty.npz", "nothing")
    assert as_lists(Block.load(tmp_path / "empty.npz")) == as_lists(block)


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_ids_take_two_bytes_where_all_fit(size, dtype):
    assert id_dtype(size) == np.dtype(dtype)
    assert np.array(size - 1).astype(id_dtype(size)) == size - 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["train", "validation"]),
            st.lists(st.text("ab", max_size=9), min_size=1),
            st.sampled_from(["sentence", "sentence", "sentence", "paragraph"]),
        ),
        max_size=40,
    ),
    st.integers(1, 60),
)
def test_blocks_are_cut_by_size_and_keep_the_order(rows, block_bytes):
    documents = [(part, Document(lines, "made up", None, rule)) for part, lines, rule in rows]
    blocks = list(cut_blocks(documents, block_bytes))
    for part in ("train", "validation"):
        mine = [block for owner, block in blocks if owner == part]
        found = [(lines, block.line_rule) for block in mine for lines in block.documents]
        assert found == [(lines, rule) for owner, lines, rule in rows if owner == part]
        sizes = [[sum(map(len, lines)) for lines in block.documents] for block in mine]
        for size, (block, following) in zip(sizes, pairwise(mine), strict=False):
            assert sum(size) >= block_bytes or block.line_rule != following.line_rule
        assert all(sum(size[:-1]) < block_bytes for size in sizes)
        assert all(sizes)


def small_block(*ids: int) -> Block:
    """Of one sentence."""
    return Block(np.array(ids, dtype=np.uint16), np.array([len(ids)], np.int32), np.array([1], np.int32), 0, 9)


def test_a_saved_block_comes_back_whole(tmp_path):
    block = small_block(65_535, 0, 7)
    small_block(1).save(tmp_path / "block.npz", "one")
    block.save(tmp_path / "block.npz", "three")
    assert Block.check(tmp_path / "block.npz") == "three"
    loaded = Block.load(tmp_path / "block.npz")
    assert as_lists(loaded) == as_lists(block)
    assert loaded.ids.dtype == np.uint16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["block.json", "block.npz"]
    assert set(asdict(block)) == set(NAMES)


@given(st.data())
def test_a_damaged_block_is_not_taken_for_a_whole_one(tmp_path_factory, data):
    store = BlockStore(tmp_path_factory.mktemp("blocks"))
    path = store.path("train", 0)
    small_block(9, 8).save(path, "text")
    assert store.holds(path, "text") and not store.holds(path, "other text")
    damaged = data.draw(st.sampled_from([path, path.with_suffix(".json")]))
    content = bytearray(damaged.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    damaged.write_bytes(content)
    assert not store.holds(path, "text")
    with pytest.raises(Damaged) as error:
        list(store.blocks("train"))
    assert str(damaged) in str(error.value)
