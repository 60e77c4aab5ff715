"""Make the folders of one version that later versions have to open: python tests/formats/make.py tests/formats/VERSION

A prepared corpus, a run that is finished and can be given a larger budget, a fine-tuning, and what it predicted; of a
model so small that all of it fits into a repository. The commands are given in the folder itself, with relative names,
as `test_formats.py` gives them again.
"""

import csv
import os
import platform
import random
import sys
from pathlib import Path

WORDS = "the of heart rate patient was stable in a trial with mild pain after two weeks and no fever".split()
PREPARE = ["--corpus=corpus.txt", "--document=blank-line", "--tokenizer=bert", "--sequence-length=32", "--workers=1",
           "--out=prepared"]  # fmt: skip
PRETRAIN = ["--prepared=prepared", "--init-from=bert", "--sequence-length=32", "--batch-size=8", "--evaluations=2",
            "--log-every=5", "--precision=fp32", "--device=cpu", "--schedule=warmup-stable-decay", "--threads=1",
            "--keep-checkpoints=1", "--out=run"]  # fmt: skip
FINETUNE = ["--model=run/final", "--train=labelled.csv", "--validation=labelled.csv", "--budget=150steps",
            "--batch-size=8", "--evaluations=2", "--precision=fp32", "--device=cpu", "--threads=1",
            "--learning-rate=2e-2", "--out=labels"]  # fmt: skip
PREDICT = ["--model=labels/final", "--out=predicted.csv", "labelled.csv"]
BUDGET = "--budget=20steps"


def main(folder: Path) -> None:
    import torch

    import data_prep.run
    import finetune.predict
    import finetune.run
    import pretrain.run
    from data_prep.vocabulary.wordpiece import SPECIAL_TOKENS, WordPieceTokenizer
    from model import BertConfig, BertForPreTraining
    from pretrain.engine.checkpoint import save_model_folder

    # The machine is no part of a format.
    platform.platform = lambda **_: "Linux"
    folder.mkdir(parents=True)
    os.chdir(folder)
    write_text()
    letters = "abcdefghijklmnopqrstuvwxyz."
    vocabulary = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters), *WORDS]
    tokenizer = WordPieceTokenizer(list(dict.fromkeys(vocabulary)), lowercase=True, strip_accents=False)
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size, max_position_embeddings=32, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32,
    )  # fmt: skip
    save_model_folder(BertForPreTraining(config), tokenizer, Path("bert"))
    for stage, options in (
        (data_prep.run, PREPARE),
        (pretrain.run, [*PRETRAIN, BUDGET]),
        (finetune.run, FINETUNE),
        (finetune.predict, PREDICT),
    ):
        if stage.main(options):
            raise SystemExit(f"{stage.__name__} {' '.join(options)} failed")
    for path in [*Path().rglob("*.png"), *Path().rglob(".lock")]:
        path.unlink()


def write_text() -> None:
    """A text of forty documents, and sixty rows of two classes."""
    rng = random.Random(3)
    documents = ["\n".join(sentence(rng) for _ in range(6)) for _ in range(40)]
    Path("corpus.txt").write_text("\n\n".join(documents))
    with open("labelled.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for text in [sentence(rng) for _ in range(60)]:
            rows.writerow([text, "painful" if "pain" in text else "other"])


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 9))).capitalize() + "."


if __name__ == "__main__":
    main(Path(sys.argv[1]))
