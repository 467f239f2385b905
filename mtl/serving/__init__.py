"""A model outside of Python: a service over HTTP, and the model as an ONNX graph."""
