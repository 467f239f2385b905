"""What heads do on a corpus: probes of attention and of clustering."""
