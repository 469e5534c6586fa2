"""Executes a notebook in its folder with this interpreter, and fails if a cell fails.

usage: execute.py NOTEBOOK OUTPUT
"""

import pathlib
import sys

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient


class Manager(AsyncKernelManager):
    """Starts this interpreter, regardless of the installed kernels."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], display_name="Python 3", language="python")


path = pathlib.Path(sys.argv[1])
notebook = nbformat.read(path, as_version=4)
NotebookClient(notebook, timeout=600, kernel_manager_class=Manager, resources={"metadata": {"path": str(path.parent)}}).execute()
nbformat.write(notebook, sys.argv[2])
