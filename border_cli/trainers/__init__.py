"""The training loop, synchronous and asynchronous."""
