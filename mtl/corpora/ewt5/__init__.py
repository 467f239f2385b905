"""EWT in five layers, or in ten: download, pairing and building from the upstream files."""
