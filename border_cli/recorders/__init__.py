"""Sinks of metrics: jsonl, TensorBoard, the console."""
