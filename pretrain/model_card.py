"""README.md of a model folder: what it is, how it came about, how good it is, how to use it."""

from model import BertConfig


def model_card(config: BertConfig, prepared: dict, results: dict, language: str) -> str:
    """The model card, with the metadata block that model hubs read.

    Args:
        prepared: the manifest of the prepared corpus.
        results: content of results.json.
    """
    found = results["validation"]
    size = f"{config.num_hidden_layers} layers x {config.hidden_size}"
    rows = [
        ("MLM loss (nats)", f"{found['mlm_loss']:.3f}", f"{found['unigram_entropy']:.3f} (word frequencies)"),
        ("MLM accuracy", f"{found['mlm_accuracy']:.3f}", f"{found['most_frequent_accuracy']:.3f} (one word)"),
    ]
    if found["nsp_accuracy"] is not None:
        rows.append(("NSP accuracy", f"{found['nsp_accuracy']:.3f}", f"{found['nsp_majority']:.3f} (majority)"))
    objective = "masked words" if found["nsp_accuracy"] is None else "masked words and next sentences"
    table = "\n".join(f"| {name} | {value} | {baseline} |" for name, value, baseline in rows)
    return f"""---
library_name: transformers
pipeline_tag: fill-mask
language: {language}
tags: [bert, fill-mask, domain-bert]
---

# A BERT of its own domain

{size}, vocabulary {config.vocab_size:,}, sequences of up to {config.max_position_embeddings} tokens. Pretrained with
{objective} on
{prepared["train"]["tokens"]:,} tokens in {prepared["train"]["documents"]:,} documents: {results["steps"]:,} steps,
{results["tokens"]:,} tokens computed.

| on held-out text | this model | baseline |
|---|---|---|
{table}

```python
from transformers import pipeline

fill = pipeline("fill-mask", model="path/to/this/folder")
print(fill("One word is [MASK] here."))
```

It knows the text it was trained on and little else, and repeats whatever bias that text has.
"""
