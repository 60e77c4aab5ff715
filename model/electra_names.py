"""The names that transformers gives to the tensors of an ELECTRA, and the names they have here."""

from .names import BERT_NAMES, TensorNames

ELECTRA_NAMES = TensorNames(
    modules={
        "bert.embeddings.word": "electra.embeddings.word_embeddings",
        "bert.embeddings.position": "electra.embeddings.position_embeddings",
        "bert.embeddings.token_type": "electra.embeddings.token_type_embeddings",
        "bert.embeddings.norm": "electra.embeddings.LayerNorm",
        "bert.embeddings.projection": "electra.embeddings_project",
        "rtd_head.dense": "discriminator_predictions.dense",
        "rtd_head.output": "discriminator_predictions.dense_prediction",
        "mlm_head": "generator_lm_head",
        "mlm_head.dense": "generator_predictions.dense",
        "mlm_head.norm": "generator_predictions.LayerNorm",
        "classifier.linear": "classifier",
        "classifier.dense": "classifier.dense",
        "classifier.out_proj": "classifier.out_proj",
        "classifier.summary": "sequence_summary.summary",
        "qa_outputs": "qa_outputs",
    },
    layer_modules=BERT_NAMES.layer_modules,
    prefix="electra.",
    layer="electra.encoder.layer.{}.",
    encoder=("electra.embeddings.", "electra.embeddings_project.", "electra.encoder."),
    task_heads=("classifier.", "qa_outputs.", "sequence_summary."),
    tied=(("electra.embeddings.word_embeddings.weight", "generator_lm_head.weight"),),
)
