"""What the report says of the documents of a corpus: how many, of how many groups, and what was left out."""

from collections import Counter

import numpy as np

from .corpora import Corpora
from .split import TRAIN, VALIDATION, Split
from .text.bad_rows import numbers_of_rows
from .text_checks import TextChecks

# Settings that the report shows.
_REPORTED = ("group_column", "group_by", "near_duplicates", "min_documents", "show_text")


def corpus_numbers(
    corpora: Corpora, documents: Split, records: np.ndarray, num_validation: int, checks: TextChecks
) -> dict:
    """The part "corpus" of prep_report.json.

    Args:
        corpora: after a pass over all of it.
        records: RECORD [documents] (see `records`), those of the validation corpus first.
        num_validation: how many these are.
        checks: of the text that was read.
    """
    opened, prep = corpora.opened, corpora.prep
    return {
        "documents": len(documents.role),
        "duplicates": documents.num_duplicates,
        "near_duplicates": documents.num_near_duplicates,
        "near_duplicates_dropped": documents.num_near_duplicates_dropped,
        "empty_documents": sum(corpus.empty_documents for corpus in opened),
        # Of the corpus that is learned from.
        "documents_without_group": int(np.count_nonzero(records["grouped"][num_validation:] == 0)),
        "cuts": sum(corpus.cuts for corpus in opened),
        **numbers_of_rows([corpus.bad_rows for corpus in opened]),
        "bytes": documents.bytes,
        "rules": corpora.corpus.rule_sentences(),
        "ignored_files": sum(len(corpus.ignored) for corpus in opened),
        "encodings": dict(sum((Counter(corpus.encodings()) for corpus in opened), Counter())),
        "groups": _groups(corpora, documents, records) if prep.group_column or documents.arrangement.files else {},
        "checks": checks.numbers(),
        "settings": {name: getattr(prep, name) for name in _REPORTED},
    }


def _groups(corpora: Corpora, documents: Split, records: np.ndarray) -> dict[str, int]:
    """How many groups have documents in each part; one without a group is one of its own. A validation corpus has
    none."""
    group = records["order"]
    if documents.arrangement.files:
        group = np.where(records["file"] > 0, records["file"], group)
    roles = {"train": TRAIN} if corpora.validation_corpus else {"train": TRAIN, "validation": VALIDATION}
    return {part: len(np.unique(group[documents.role == role])) for part, role in roles.items()}
