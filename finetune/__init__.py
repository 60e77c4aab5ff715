"""A pretrained BERT and labelled texts -> a classifier, its measured results, and predictions."""
