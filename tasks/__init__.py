"""The ground floor: sentences, their annotation layers, and tasks with their decoders and metrics."""
