"""Tags of words and the entities that they mark: schemes, annotation tools, taggers without a BERT."""
