"""Adapters for engines. Each is a module of its own, imported by name: ``import ringfold.integrations.sglang``."""
