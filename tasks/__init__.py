"""The ground floor: sentences, their annotation layers, and one file per task."""
