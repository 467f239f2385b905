"""What heads attend to and hand on: as tensors, as pictures, and as measures."""
