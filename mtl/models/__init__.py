"""From words to annotations: tokeniser, pretrained transformer, batches, joint model, scores."""
