"""What heads do on a corpus: attention and clustering probes."""
