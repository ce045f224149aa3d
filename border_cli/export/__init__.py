"""Trained policies for other programs: ONNX, TorchScript, and plain numpy."""
