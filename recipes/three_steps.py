"""ULMFiT's three steps (Howard and Ruder 2018) with a BERT: general text, then text of the domain, then labelled rows.

    python recipes/three_steps.py --general wikipedia/ --domain notes/ --train labels.csv --test test.csv

In the third step alone each layer learns at 1/2.6 of the rate of the one above it, and one more layer begins to learn
in each epoch, from the top. In all three the rate rises over a tenth of the budget and falls over the rest (sections
3.2 and 3.3).
Given again, the command goes on where it was stopped; a step that is finished is not repeated. Little text of the
domain has fewer than 2,000 entries to add: the second step says how many, for --extend-vocab.

Hardware: 2 CPU cores with bf16. Time: an hour and a half, and the epochs of the labelled rows. Result: not measured.
"""

import argparse
import glob
import json
import sys
from pathlib import Path

from finetune import Interrupted, UserError, finetune
from pretrain import pretrain

# Howard and Ruder 2018, sections 3.2 and 3.3; the rate is linear on both sides of its peak by default.
LAYER_DECAY, WARMUP = 1 / 2.6, 0.1
# Epochs with all layers, behind those in which one more begins.
EPOCHS_AT_LAST = 3


def main(arguments: list[str] | None = None) -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--general", required=True, help="text of any kind, much of it: a file or a folder")
    made.add_argument("--domain", required=True, help="text of the domain")
    made.add_argument("--train", required=True, help="labelled rows")
    made.add_argument("--test", help="labelled rows for the final result")
    made.add_argument("--out", type=Path, default=Path("runs/three_steps"), help="folder (default: %(default)s)")
    made.add_argument("--general-budget", default="60m", help="how long on general text (default: %(default)s)")
    made.add_argument("--domain-budget", default="30m", help="how long on text of the domain (default: %(default)s)")
    made.add_argument("--preset", default="mini", help="size of the model (default: %(default)s)")
    made.add_argument("--extend-vocab", type=int, default=2000, help="entries of the domain (default: %(default)s)")
    made.add_argument("--seeds", type=int, default=1, help="how often to fine-tune (default: %(default)s)")
    try:
        done = three_steps(made.parse_args(arguments))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stopped:
        print(f"{stopped}. Go on with the same command.", file=sys.stderr)
        return 75
    print(f"The model is in {done / 'final'}, its results in {done / 'results.json'}.")
    return 0


def three_steps(given: argparse.Namespace) -> Path:
    """The folder of the third step.

    Raises:
        UserError: of what is given something does not exist, or cannot be used.
    """
    # Before an hour of the first step.
    for path in (given.general, given.domain, given.train, given.test):
        if path and not path.startswith("hub:") and not glob.glob(path):
            raise UserError(f"{path} does not exist: give a file or a folder")
    general = pretrain(
        corpus=given.general, preset=given.preset, budget=given.general_budget, out=given.out / "1-general"
    )
    domain = pretrain(
        corpus=given.domain,
        init_from=general / "final",
        extend_vocab=given.extend_vocab,
        budget=given.domain_budget,
        out=given.out / "2-domain",
    )
    layers = json.loads((domain / "final" / "config.json").read_text())["num_hidden_layers"]
    # The head learns from the first epoch on, then each layer from the top, and the embeddings.
    epochs = layers + 1 + EPOCHS_AT_LAST
    return finetune(
        model=domain / "final",
        train=given.train,
        test=given.test,
        layer_decay=LAYER_DECAY,
        unfreeze=(layers + 1) / epochs,
        warmup=WARMUP,
        budget=f"{epochs}epochs",
        seeds=given.seeds,
        out=given.out / "3-task",
    )


if __name__ == "__main__":
    sys.exit(main())
