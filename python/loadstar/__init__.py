"""Forecasts of electricity loads, trained across many meters.

This package calls the command ``loadstar``, which its wheel contains, and exchanges data
frames with the command. The package contains no model code.
"""

from ._api import Agent, Server
from ._command import LoadstarError, command, run
from ._files import findings, read_forecasts, read_run, read_safetensors, Run
from ._model import fit, load, Model

__all__ = [
    "Agent", "LoadstarError", "Model", "Run", "Server",
    "command", "findings", "fit", "load", "read_forecasts", "read_run", "read_safetensors", "run",
]
