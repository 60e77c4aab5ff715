"""How often the right word is among fill-mask's first five: one mask each in held-out examples, whole context given.

    python benchmarks/top_five.py --run runs/builtin [--masks 200]

The model and the held-out examples are those of the run.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from table import run

from data_prep.examples.packing import ShardExamples, pack
from data_prep.examples.pairs import example_order
from data_prep.examples.random_keys import below, keys
from data_prep.prepared import PreparedCorpus
from model import BertForMaskedLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="output folder of pretrain.run")
    parser.add_argument("--prepared", type=Path, help="prepared corpus, if it is not inside the run")
    parser.add_argument("--masks", type=int, default=200)
    given = parser.parse_args()
    prepared = PreparedCorpus(given.prepared or given.run / "prepared")
    model = BertForMaskedLM.from_pretrained(given.run / "final")
    hits = {1: 0, 5: 0}
    sequences = masked_sequences(prepared, model.config.max_position_embeddings, given.masks)
    for ids, types, position, answer in sequences:
        with torch.inference_mode():
            scores = model(ids[None], token_type_ids=types[None]).logits[0, position]
        best = scores.topk(5).indices.tolist()
        for k in hits:
            hits[k] += answer in best[:k]
    print("| masks | first | among the first five |\n|---|---|---|")
    print(f"| {len(sequences)} | {hits[1] / len(sequences):.1%} | {hits[5] / len(sequences):.1%} |")


def masked_sequences(prepared: PreparedCorpus, length: int, count: int) -> list[tuple]:
    """Held-out examples in their frozen order, each with one ordinary token masked: ids, types, place, answer."""
    tokenizer, shard = prepared.tokenizer, prepared.validation[0]
    examples = ShardExamples.of(prepared, "validation", length)(0)
    found = []
    for row in example_order(examples.key)[:count]:
        example = examples[row : row + 1]
        packed = pack([shard], example, tokenizer.cls_id, tokenizer.sep_id)
        places = np.flatnonzero(tokenizer.is_ordinary[packed.input_ids])
        place = int(places[below(keys(0, "top five", 0, example.key), len(places))[0]])
        answer = int(packed.input_ids[place])
        packed.input_ids[place] = tokenizer.mask_id
        found.append((torch.from_numpy(packed.input_ids), torch.from_numpy(packed.token_type_ids), place, answer))
    return found


if __name__ == "__main__":
    sys.exit(run(main))
