"""EWT in five layers: download, pairing and building from the upstream files."""
