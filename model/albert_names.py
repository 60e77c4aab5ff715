"""The names that transformers gives to the tensors of an ALBERT, and the names they have here."""

from .names import TensorNames

ALBERT_NAMES = TensorNames(
    modules={
        "bert.embeddings.word": "albert.embeddings.word_embeddings",
        "bert.embeddings.position": "albert.embeddings.position_embeddings",
        "bert.embeddings.token_type": "albert.embeddings.token_type_embeddings",
        "bert.embeddings.norm": "albert.embeddings.LayerNorm",
        "bert.embeddings.projection": "albert.encoder.embedding_hidden_mapping_in",
        "bert.pooler.dense": "albert.pooler",
        "mlm_head": "predictions",
        "mlm_head.dense": "predictions.dense",
        "mlm_head.norm": "predictions.LayerNorm",
        "nsp_head": "sop_classifier.classifier",
        "classifier.linear": "classifier",
        "qa_outputs": "qa_outputs",
    },
    layer_modules={
        "qkv": ("attention.query", "attention.key", "attention.value"),
        "attention_output": ("attention.dense",),
        "attention_norm": ("attention.LayerNorm",),
        "intermediate": ("ffn",),
        "output": ("ffn_output",),
        "output_norm": ("full_layer_layer_norm",),
    },
    prefix="albert.",
    layer="albert.encoder.albert_layer_groups.0.albert_layers.{}.",
    encoder=("albert.embeddings.", "albert.encoder."),
    tied=(
        ("albert.embeddings.word_embeddings.weight", "predictions.decoder.weight"),
        ("predictions.bias", "predictions.decoder.bias"),
    ),
)
