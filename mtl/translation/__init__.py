"""Translation: a task, and the encoder-decoder models that it is trained on."""
