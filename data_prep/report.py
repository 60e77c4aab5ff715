"""What is in the data: numbers, warnings with a remedy, decoded examples. Seen before hours are spent."""

from collections import Counter
from itertools import pairwise

import numpy as np

from .copies import RUN
from .examples.masking import MaskingRules, mask
from .examples.packing import Examples, pack
from .examples.pairs import IS_NEXT, IS_RANDOM, UNLABELLED, Pairs, Reason, example_keys
from .prepared import Shard
from .text_checks import LONG_RUN
from .vocabulary.word_counts import log_unigram
from .vocabulary.wordpiece import WordPieceTokenizer

_BINS = 8
_IDS_AT_ONCE = 1 << 20
# A vocabulary is too large if this share of its entries occurs this rarely.
_RARE, _RARE_SHARE = 5, 0.2
# Held-out text that is known by heart.
_COPIED_SHARE = 0.2
# What the reports say for the reasons of an example without a label, and what can be done about it.
_REASONS = {
    Reason.ONLY_SENTENCE: "the only sentence of its document",
    Reason.NO_ROOM: "a sentence beside which no neighbour fits",
    Reason.LEFT_OVER: "a sentence whose neighbours are in other windows",
    Reason.NO_PARTNER: "no window of another document to exchange sentences with",
    Reason.ODD_COUPLE: "one of an odd couple",
}
_REMEDIES = {
    Reason.ONLY_SENTENCE: "if documents or sentences were cut wrongly, see --document and --line",
    Reason.NO_ROOM: "a larger --sequence-length leaves fewer",
    Reason.LEFT_OVER: "a larger --sequence-length leaves fewer",
    Reason.NO_PARTNER: "if a document that outweighs the others should be several, see --document",
}


class PartNumbers:
    """A part of the corpus and its pairs in numbers, added up shard by shard."""

    def __init__(self, vocab_size: int, sequence_length: int):
        self.sequence_length = sequence_length
        self.documents = self.sentences = self.sentences_cut = 0
        self.counts = np.zeros(vocab_size, dtype=np.int64)
        """How often each vocabulary entry occurs: int64 [V]."""
        self._labels: Counter[int] = Counter()
        self._reasons = np.zeros(len(Reason), dtype=np.int64)
        self._labelled_tokens = 0
        self._examples_of_length = np.zeros(sequence_length + 1, dtype=np.int64)

    def add(self, shard: Shard, pairs: Pairs) -> None:
        """Count a shard and its pairs."""
        self.documents += shard.num_documents
        self.sentences += len(shard.sentence_starts) - 1
        self.sentences_cut += pairs.sentences_cut
        # It makes 64 bits of each id.
        for start in range(0, len(shard.ids), _IDS_AT_ONCE):
            self.counts += np.bincount(shard.ids[start : start + _IDS_AT_ONCE], minlength=len(self.counts))
        self._labels.update({label: int((pairs.label == label).sum()) for label in (IS_NEXT, IS_RANDOM, UNLABELLED)})
        self._reasons += np.bincount(pairs.reason, minlength=len(Reason))
        self._labelled_tokens += int((pairs.a_length + pairs.b_length)[pairs.label != UNLABELLED].sum())
        self._examples_of_length += np.bincount(pairs.lengths(), minlength=self.sequence_length + 1)

    def of_text(self) -> dict[str, int]:
        """Documents, sentences and tokens."""
        return {"documents": self.documents, "sentences": self.sentences, "tokens": int(self.counts.sum())}

    @property
    def labelled(self) -> int:
        """Examples with a next-sentence label."""
        return self._labels[IS_NEXT] + self._labels[IS_RANDOM]

    def of_pairs(self) -> dict:
        """Examples: label balance, lengths, and how full the sequences are."""
        length, sizes = self.sequence_length, self._examples_of_length
        examples = int(sizes.sum())
        bounds = np.linspace(0, length, _BINS + 1).round().astype(int)
        return {
            "sequence_length": length,
            "examples": examples,
            "next": self._labels[IS_NEXT],
            "random": self._labels[IS_RANDOM],
            "unlabelled": self._labels[UNLABELLED],
            "unlabelled_because": {reason.name.lower(): int(self._reasons[reason]) for reason in _REASONS},
            "labelled_tokens": self._labelled_tokens / max(1, int(self.counts.sum())),
            "sentences_cut": self.sentences_cut,
            "fill": float(sizes @ np.arange(length + 1) / examples / length),
            "length_histogram": {
                f"{low + 1}-{high}": int(sizes[low + 1 : high + 1].sum()) for low, high in pairwise(bounds.tolist())
            },
        }


def text_numbers(train: PartNumbers, validation: PartNumbers, words: int, tokenizer: WordPieceTokenizer) -> dict:
    """Tokens a word, unknown words, and the unigram entropy: the MLM loss of a model that knows only frequencies.

    Args:
        words: of the training part.
    """
    tokens = int(train.counts.sum())
    return {
        "vocab_size": tokenizer.vocab_size,
        "lowercase": tokenizer.lowercase,
        "tokens_per_word": tokens / max(1, words),
        "unk_rate": float(train.counts[tokenizer.unk_id] / max(1, tokens)),
        "held_out_unk_rate": float(validation.counts[tokenizer.unk_id] / validation.counts.sum()),
        "rare_entries": sum(
            len(entry.removeprefix("##")) > 1 and count < _RARE and is_ordinary
            for entry, count, is_ordinary in zip(
                tokenizer.vocabulary, train.counts.tolist(), tokenizer.is_ordinary.tolist(), strict=True
            )
        ),
        "unigram_entropy": float(-log_unigram(train.counts) @ validation.counts / validation.counts.sum()),
    }


def warnings(facts: dict, is_vocabulary_given: bool) -> list[str]:
    """Sentences about what will hurt in the text and its pairs, each with a remedy."""
    found = []
    pairs, text, corpus = facts["pairs"], facts["text"], facts["corpus"]
    most = max(_REMEDIES, key=lambda reason: pairs["unlabelled_because"][reason.name.lower()])
    if pairs["next"] == 0:
        found.append(
            "No example carries a next-sentence label, so next sentences cannot be learned; most frequent reason: "
            f"{_REASONS[most]}. Words are learned all the same; {_REMEDIES[most]}."
        )
    elif pairs["unlabelled"] > 0.2 * pairs["examples"]:
        found.append(
            f"{pairs['unlabelled'] / pairs['examples']:.0%} of the examples carry no next-sentence label; most "
            f"frequent reason: {_REASONS[most]}. Their words are learned all the same; {_REMEDIES[most]}."
        )
    # Words that are too long have a warning of their own. They are counted in all that was read, copies among them.
    read = max(1, corpus["checks"]["documents"])
    long_words = corpus["checks"]["long_words"] * facts["train"]["documents"] / read
    unknown = text["unk_rate"] - long_words / max(1, facts["train"]["tokens"])
    if unknown > 0.001:
        remedy = "more text or a larger --vocab-size covers more characters"
        if is_vocabulary_given:
            remedy = "the vocabulary lacks characters of this text: --extend-vocab adds frequent ones"
        found.append(f"{unknown:.2%} of the tokens are [UNK]: {remedy}.")
    if text["held_out_unk_rate"] > text["unk_rate"] + 0.01:
        found.append(
            f"{text['held_out_unk_rate']:.0%} of the held-out tokens are [UNK], far more than of the others, so an "
            "evaluation says little: give a --validation-corpus in the characters of the text that is learned from."
        )
    if corpus["duplicates"] > 0.1 * corpus["documents"]:
        share = corpus["duplicates"] / corpus["documents"]
        found.append(f"{share:.0%} of the documents were exact duplicates and were dropped: was a file given twice?")
    if pairs["sentences_cut"] > 0.05 * facts["train"]["sentences"]:
        found.append(
            f"{pairs['sentences_cut'] / facts['train']['sentences']:.0%} of the sentences are longer than the "
            "sequence length and were cut into pieces: use a larger --sequence-length, or --line paragraph if a line "
            "holds several sentences."
        )
    if facts["copied"]["share"] > _COPIED_SHARE:
        found.append(
            f"{facts['copied']['share']:.0%} of the held-out tokens stand in runs of {RUN} and more in the training "
            "part too (letterheads, quotations, copies): look at the loss without copies, which every evaluation gives."
        )
    checks = corpus["checks"]
    found += [*_about_rows(corpus), *_about_characters(checks, text["lowercase"])]
    return [*found, *_about_words(checks, corpus["documents"])]


def warnings_of_size(facts: dict, is_vocabulary_given: bool) -> list[str]:
    """Sentences about text or vocabulary of a wrong size, each with a remedy; a sample cannot tell."""
    found = []
    text, tokens = facts["text"], facts["train"]["tokens"]
    if facts["pairs"]["next"] and not facts["labelled_held_out"]:
        found.append(
            "No held-out example carries a next-sentence label, which takes two documents of several sentences, so "
            "next sentences are learned, but never evaluated: give a --validation-corpus of such documents."
        )
    if not is_vocabulary_given and text["rare_entries"] > _RARE_SHARE * text["vocab_size"]:
        enough = max(128, (text["vocab_size"] - text["rare_entries"]) // 64 * 64)
        fewer = f"--vocab-size {enough} leaves the rarest out, or " if enough < text["vocab_size"] else ""
        found.append(
            f"{text['rare_entries']:,} of {text['vocab_size']:,} vocabulary entries occur fewer than {_RARE} times, "
            f"too seldom to be learned: {fewer}give more text."
        )
    if not is_vocabulary_given and tokens < 1_000_000:
        found.append(
            f"Only {tokens:,} tokens to learn from: a BERT from scratch wants millions, "
            "continue from an existing BERT (pretrain.run --init-from)."
        )
    return found


def _about_rows(corpus: dict) -> list[str]:
    """Warnings about rows that are left out, and documents of no group."""
    found = []
    if corpus["bad_rows"] > 0.01 * corpus["rows"]:
        found.append(
            f"{corpus['bad_rows']:,} of {corpus['rows']:,} rows hold no text or cannot be read, and were left out (the "
            f"first: {corpus['bad_rows_listed'][0]}); the report lists them."
        )
    column, without = corpus["settings"]["group_column"], corpus["documents_without_group"]
    if column and without:
        found.append(
            f"{without:,} documents have no {column} (an empty cell, or a text file, which has no columns): each of "
            "them counts as a group of its own."
        )
    return found


def _about_characters(checks: dict, is_lower_cased: bool) -> list[str]:
    """Warnings about characters that are not read, or not those of the author."""
    found = []
    if checks["read_twice"]:
        found.append(
            f"In {checks['read_twice']:,} places a letter has become two or three (as é has become Ã©): the text was "
            "once read in a wrong encoding and saved so. Convert it again from its source."
        )
    if checks["unreadable_characters"]:
        found.append(
            f"{checks['unreadable_characters']:,} characters are U+FFFD, which stands for what a program could not "
            "read: convert the text again from its source."
        )
    if checks["latin_controls"]:
        found.append(
            f"{checks['latin_controls']:,} characters are from U+0080 to U+009F, which are no letters: cp1252 text "
            "was read as Latin-1 (--encoding cp1252 reads it rightly), or UTF-8 was (leave --encoding out); convert "
            "text again that was saved so."
        )
    if checks["private_characters"]:
        found.append(
            f"{checks['private_characters']:,} characters are of private use (letters or bullets of one font): the "
            "tokenizer drops them; put the letters in their place that they stand for."
        )
    if checks["joiners"] > 0.001 * checks["bytes"]:
        found.append(
            f"{checks['joiners']:,} characters join or part letters without a space (U+200C, U+200D, as in Persian): "
            "the tokenizer drops them, and what U+200C parts becomes one word; put a space where a word ends."
        )
    if is_lower_cased and checks["turkish_letters"] > 0.001 * checks["bytes"]:
        found.append(
            f"{checks['turkish_letters']:,} letters are ı or İ, as in Turkish and Azeri, where I and i are no pair, "
            "but the text is lower-cased as if they were: lower-case it before, or give --no-lowercase."
        )
    forms = checks["composed_lines"], checks["decomposed_lines"]
    if min(forms) > 0.01 * sum(forms):
        found.append(
            f"In {forms[0]:,} lines of a sample letters with accents are one character, in {forms[1]:,} a letter and a "
            "mark: the same word is learned twice. Bring all text into one form (NFC), also what the model will read."
        )
    return found


def _about_words(checks: dict, documents: int) -> list[str]:
    """Warnings about what the text holds that is no language, or no words."""
    found = []
    if checks["share_of_long_words"] > 0.001:
        found.append(
            f"{checks['long_words']:,} words have more than {checks['longest_word']} characters and make "
            f"{checks['share_of_long_words']:.1%} of the text; BERT reads each as one [UNK], and learns nothing of it. "
            "Take out or cut sequences, base64, and lines that lost their spaces."
        )
    if checks["share_of_long_runs"] > 0.01:
        found.append(
            f"{checks['share_of_long_runs']:.0%} of the text stands in runs of {LONG_RUN} characters and more without "
            "a space (base64, hashes, sequences), which are learned as words: take them out."
        )
    if checks["documents_with_tags"] > 0.1 * documents:
        share = checks["documents_with_tags"] / documents
        found.append(f"{share:.0%} of the documents hold HTML or XML tags, which are learned as words: take them out.")
    if checks["share_of_repeated_lines"] > 0.01:
        found.append(
            f"{checks['repeated_lines']:,} lines stand in more than half of the documents and make "
            f"{checks['share_of_repeated_lines']:.0%} of the text (letterheads, footers, disclaimers): take them out, "
            "they are quickly learned and teach nothing."
        )
    if checks["share_without_spaces"] > 0.1:
        found.append(
            "The text is in a language written without spaces (Thai, Lao, Burmese or Khmer), where a clause would be "
            "taken for a word: put spaces between its words with a segmenter for that language first."
        )
    return found


def decoded_examples(
    shard: Shard, pairs: Pairs, tokenizer: WordPieceTokenizer, masking: str, seed: int, count: int
) -> list[dict]:
    """The first examples of a shard as a person can read them: segments, masked input, label, and the answers."""
    rows = np.arange(min(count, len(pairs)))
    key = example_keys(shard.index, rows, seed, 0)
    examples = Examples.of(0, pairs, np.zeros(len(pairs), dtype=np.uint64))[rows]
    packed = pack([shard], examples, tokenizer.cls_id, tokenizer.sep_id)
    rules = MaskingRules.of(tokenizer, masking)
    ids, positions, labels = mask(packed.input_ids, packed.token_type_ids, packed.sequence_starts, key, rules)
    names = {IS_NEXT: "B follows A", IS_RANDOM: "B is from another document", UNLABELLED: "no label"}
    shown = []
    for row in rows.tolist():
        start, end = packed.sequence_starts[row], packed.sequence_starts[row + 1]
        mine = (positions >= start) & (positions < end)
        shown.append(
            {
                "input": " ".join(tokenizer.vocabulary[i] for i in ids[start:end].tolist()),
                "answers": [tokenizer.vocabulary[i] for i in labels[mine].tolist()],
                "next_sentence": names[int(examples.label[row])],
            }
        )
    return shown


def markdown(facts: dict) -> str:
    """The report as a page."""
    corpus, text, pairs = facts["corpus"], facts["text"], facts["pairs"]
    checks, copied = corpus["checks"], facts["copied"]
    is_looked_for = corpus["settings"]["near_duplicates"] != "keep"
    near_duplicates = f"{corpus['near_duplicates']:,}" if is_looked_for else "not looked for"
    rows = [
        ("documents read", f"{corpus['documents']:,}"),
        ("exact duplicates dropped", f"{corpus['duplicates']:,}"),
        ("documents that share two thirds of their text with another", near_duplicates),
        ("of these dropped", f"{corpus['near_duplicates_dropped']:,}"),
        *((name.replace("_", " "), value or "none") for name, value in corpus["settings"].items()),
        *((f"groups, {part}", f"{number:,}") for part, number in corpus["groups"].items()),
        ("places where a document of over 4 million characters was cut", f"{corpus['cuts']:,}"),
        ("documents without text", f"{corpus['empty_documents']:,}"),
        ("rows without text, or not to be read", f"{corpus['bad_rows']:,} of {corpus['rows']:,}"),
        ("files left out, of other formats", f"{corpus['ignored_files']:,}"),
        *((f"files read as {encoding}", f"{number:,}") for encoding, number in corpus["encodings"].items()),
        ("control characters dropped", f"{checks['control_characters']:,}"),
        ("unreadable characters (U+FFFD)", f"{checks['unreadable_characters']:,}"),
        ('names of special tokens, as text ("[MASK]")', f"{checks['special_tokens_as_text']:,}"),
        ("joiners dropped (U+200C, U+200D)", f"{checks['joiners']:,}"),
        ("characters of private use dropped", f"{checks['private_characters']:,}"),
        (f"words of more than {checks['longest_word']} characters, each one [UNK]", f"{checks['long_words']:,}"),
        ("characters in them", f"{checks['long_word_characters']:,}"),
        ("documents with HTML or XML tags", f"{checks['documents_with_tags']:,}"),
        ("lines in more than half of the documents", f"{checks['repeated_lines']:,}"),
        *((f"{name}, {part}", f"{facts[part][name]:,}") for part in ("train", "validation") for name in facts[part]),
        ("vocabulary", f"{text['vocab_size']:,}"),
        ("tokens a word", f"{text['tokens_per_word']:.2f}"),
        ("[UNK] rate", f"{text['unk_rate']:.3%}"),
        ("[UNK] rate of the held-out text", f"{text['held_out_unk_rate']:.3%}"),
        ("unigram entropy (MLM baseline), nats", f"{text['unigram_entropy']:.2f}"),
        (f"held-out tokens in runs of {RUN} that stand in train too", f"{copied['tokens']:,} ({copied['share']:.1%})"),
        (f"examples an epoch at length {pairs['sequence_length']}", f"{pairs['examples']:,}"),
        ("labelled next / random / none", f"{pairs['next']:,} / {pairs['random']:,} / {pairs['unlabelled']:,}"),
        *(
            (f"without a label: {words}", f"{pairs['unlabelled_because'][reason.name.lower()]:,}")
            for reason, words in _REASONS.items()
        ),
        ("held-out examples with a label", f"{facts['labelled_held_out']:,}"),
        ("tokens in labelled examples", f"{pairs['labelled_tokens']:.1%}"),
        *((f"rows of {name}/", f"{number:,}") for name, number in facts["static"].items()),
        ("sentences cut into pieces", f"{pairs['sentences_cut']:,}"),
        ("mean length / sequence length", f"{pairs['fill']:.0%}"),
    ]
    lines = ["# Prepared corpus", "", *corpus["rules"], ""]
    lines += ["| what | how much |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    lines += ["## Lengths of the examples", "", "| tokens | examples |", "|---|---|"]
    lines += [f"| {bounds} | {number:,} |" for bounds, number in pairs["length_histogram"].items()]
    lines += ["", "## Warnings", "", *(f"- {warning}" for warning in facts["warnings"] or ["none"]), ""]
    if corpus["bad_rows"]:
        listed = corpus["bad_rows_listed"]
        lines += [f"## The first {len(listed)} of {corpus['bad_rows']:,} rows left out", ""]
        lines += [*(f"- {row}" for row in listed), ""]
    lines += ["## The first examples", ""] if facts["examples"] else []
    for number, example in enumerate(facts["examples"], 1):
        lines += [f"{number}. {example['next_sentence']}", "", "   ```text", f"   {example['input']}", "   ```", ""]
        lines += [f"   masked: {', '.join(f'`{word}`' for word in example['answers'])}", ""]
    return "\n".join(lines)
