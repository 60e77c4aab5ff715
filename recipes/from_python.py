"""From text to predictions in Python, at once or cell by cell in a notebook.

    python recipes/from_python.py

Hardware: 2 CPU cores with bf16. Time: about 8 minutes, 4 of them pretraining. Result: MLM loss 3.1 (word frequencies
alone 6.2). The texts are those of the built-in corpus: `corpus`, `train` and `test` take your own.
"""

# %%
import json

from data_prep import PreparedCorpus, prepare
from finetune import Classifier, finetune
from pretrain import pretrain

# %% Text to vocabulary, token ids and sentence pairs
prepared = prepare(corpus="builtin", out="prepared")
print(f"{PreparedCorpus(prepared).manifest['train']['tokens']:,} tokens to learn from")

# %% A BERT of the domain; the same call goes on where it was stopped
run = pretrain(prepared=prepared, budget="4m", out="runs/builtin")
results = json.loads((run / "results.json").read_text())
print(f"held-out MLM loss {results['validation']['mlm_loss']:.2f}")

# %% A classifier on top
labels = finetune(model=run / "final", train="builtin", out="runs/packages")
results = json.loads((labels / "results.json").read_text())
print(f"test accuracy {results['test']['accuracy']['mean']:.3f}")

# %% At work
texts = ["Draw a line through the points of a figure.", "Returns the product of two matrices."]
for text, found in zip(texts, Classifier.load(labels / "final").predict(texts), strict=True):
    print(f"{found['predicted_label']}: {text}")
