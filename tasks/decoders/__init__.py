"""From word vectors to scores, losses and annotations, and the targets that losses are computed from."""
