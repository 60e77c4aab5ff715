"""How full examples are: windows of one document beside full sentences, counted over the training part of a corpus.

    python benchmarks/fill.py --prepared prepared --lengths 128 512

Windows are those of a run without pairs; special tokens count.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from table import run

from data_prep.examples.full_sentences import FullShardExamples
from data_prep.examples.packing import ShardExamples
from data_prep.prepared import PreparedCorpus

KINDS = {"windows": ShardExamples, "full sentences": FullShardExamples}


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--prepared", type=Path, required=True, help="folder that data_prep.run wrote")
    made.add_argument("--lengths", type=int, nargs="+", default=[128, 512], help="most tokens of an example")
    given = made.parse_args()
    corpus = PreparedCorpus(given.prepared)
    print("| length | examples | tokens of one | full |\n|---|---|---|---|")
    for length in given.lengths:
        for name, kind in KINDS.items():
            examples = kind.of(corpus, "train", length, seed=1, next_sentence=False)
            lengths = np.concatenate([examples(index).lengths() for index in range(len(examples))])
            print(f"| {length}, {name} | {len(lengths):,} | {lengths.mean():.1f} | {lengths.mean() / length:.0%} |")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
