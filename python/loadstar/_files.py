"""Reads the command's output files as data frames."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Tuple, Union

import numpy as np
import pandas as pd

from ._command import LoadstarError, run

PathLike = Union[str, "os.PathLike[str]"]

_TYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8"}


def read_safetensors(path: PathLike) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """Return the arrays and the metadata of a .safetensors file."""
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, t in header.items():
        first, end = t["data_offsets"]
        arrays[name] = np.frombuffer(data[start + first : start + end], _TYPES[t["dtype"]]).reshape(t["shape"])
    return arrays, metadata


def _csv(path: PathLike) -> pd.DataFrame:
    # Names such as "007" or "NA" are strings, and an empty field is a missing number.
    names = ("unique_id", "method", "source", "quality", "reason", "model", "outcome", "level", "by", "quantity")
    head = pd.read_csv(path, nrows=0).columns
    texts = {c: str for c in names if c in head}
    frame = pd.read_csv(path, dtype=texts, keep_default_na=False, na_values={c: ["", "NaN"] for c in head if c not in texts})
    for column in ("ds", "cutoff", "day"):
        if column in frame and frame[column].dtype == object:
            frame[column] = pd.to_datetime(frame[column], utc=True)
    return frame


def read_forecasts(path: PathLike) -> pd.DataFrame:
    """Return the forecasts in a CSV file of ``loadstar forecast -o`` or ``backtest --out``. Times are UTC."""
    return _csv(path)


class Run:
    """The folder of a run."""

    def __init__(self, folder: PathLike) -> None:
        self.folder = Path(folder)
        #: The main results, as in summary.json.
        self.summary: Dict[str, Any]
        try:
            self.summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise LoadstarError(f"{self.folder} has no finished run: train one with fit, or finish it with loadstar simulate --resume", 1) from None

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of the run, such as clients, rounds, errors or baselines/baselines."""
        path = self.folder / (name + ".csv")
        if not path.exists():
            have = sorted(str(p.relative_to(self.folder).with_suffix("")) for p in self.folder.rglob("*.csv"))
            raise LoadstarError(f"{self.folder} has no table {name}; it has {', '.join(have)}", 1)
        return _csv(path)

    def weights(self) -> Dict[str, np.ndarray]:
        """Return the shared weights, with PyTorch's names and shapes."""
        return read_safetensors(self.folder / "shared.safetensors")[0]

    def __repr__(self) -> str:
        s = self.summary
        return f"<loadstar run {s['plan']} on {s['dataset']}: {s['clients']} clients, relative MAE {s['relative_mae']['median']}>"


def read_run(folder: PathLike) -> Run:
    """Return a finished run."""
    return Run(folder)


def findings(data: PathLike) -> pd.DataFrame:
    """Check a dataset, and return the findings of ``loadstar data check``: a row per meter and finding."""
    report = json.loads(run("data", "check", data, "--json", ok=(0, 3)))  # 3: a meter has a problem
    rows = [
        {"unique_id": m["meter"], **{k: f.get(k) for k in ("code", "severity", "count", "steps", "message", "advice")}}
        for m in report["meters"]
        for f in m.get("findings") or []
    ]
    return pd.DataFrame(rows, columns=["unique_id", "code", "severity", "count", "steps", "message", "advice"])
