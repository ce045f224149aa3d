"""Agents: one folder per family, each with config, network, loss and agent."""
