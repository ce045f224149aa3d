"""Trained policies for other programs: ONNX and plain numpy."""
