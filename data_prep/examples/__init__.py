"""Token ids to examples: pairs of sentences, masks, packed batches; pure functions of keys."""
