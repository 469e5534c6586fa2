"""Trains models and forecasts with them, by calling the command."""

from __future__ import annotations

import json
import re
import tempfile
import weakref
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

import pandas as pd

from ._command import LoadstarError, run
from ._files import PathLike, Run, _csv


def fit(
    df: pd.DataFrame,
    zone: str,
    h: str = "24h",
    *,
    unit: str = "kW",
    stamp: str = "start",
    weather: Optional[pd.DataFrame] = None,
    country: Optional[str] = None,
    plan: Union[None, str, PathLike] = None,
    rounds: int = 0,
    folder: Optional[PathLike] = None,
) -> "Model":
    """Train a model on the loads of many meters, each with its own personal layers.

    df has the columns ``unique_id`` (the meter), ``ds`` (the time) and ``y`` (the load in
    ``unit``). Times without an offset are local times in ``zone``. ``stamp`` states whether
    times mark the start or the end of an interval. ``weather`` has a column ``ds`` and columns
    that ``loadstar data init`` recognises, such as ``temperature``.

    ``h`` is the forecast horizon. ``plan`` is the path of a plan, which replaces the default plan
    and ``h``. The data and the run are written to ``folder``, or to a temporary folder that is
    removed with the model.
    """
    missing = [c for c in ("unique_id", "ds", "y") if c not in df.columns]
    if missing:
        raise LoadstarError(f"the frame has no column {', '.join(missing)}: name the meter unique_id, the time ds and the load y", 2)
    owner = None
    if folder is None:
        owner = tempfile.TemporaryDirectory(prefix="loadstar-")
        folder = owner.name
    base = Path(folder)
    data, out = base / "data", base / "run"
    if out.exists() or data.exists():
        raise LoadstarError(f"{base} already has a model: open it with loadstar.load, or choose another folder", 1)
    data.mkdir(parents=True)
    _write(df[["unique_id", "ds", "y"]], data / "load.csv")
    arguments: List[Any] = ["data", "init", data, "--zone", zone, "--unit", unit, "--stamp", stamp, "--load", "load.csv", "--name", "data", "--yes"]
    if weather is not None:
        _write(weather, data / "weather.csv")
        arguments += ["--weather", "weather.csv"]
    if country is not None:
        arguments += ["--country", country]
    run(*arguments)
    if plan is None:
        plan = base / "plan.yaml"
        Path(plan).write_text(f"name: day-ahead\nmodel: {{name: dense, targets: {h}}}\nalgorithm: fedavg\n", encoding="utf-8")
    run("simulate", plan, "--data", data, "--out", out, "--rounds", rounds, "--quiet")
    return Model(base, zone, owner)


def load(folder: PathLike) -> "Model":
    """Return the model that ``fit`` has written to a folder."""
    return Model(Path(folder), None, None)


def _write(frame: pd.DataFrame, path: Path) -> None:
    out = frame.copy()
    if not pd.api.types.is_datetime64_any_dtype(out["ds"]):
        out["ds"] = pd.to_datetime(out["ds"])
    offset = "%z" if out["ds"].dt.tz is not None else ""
    out["ds"] = out["ds"].dt.strftime("%Y-%m-%dT%H:%M:%S" + offset)
    out.to_csv(path, index=False)


class Model:
    """A trained model with its data. ``run`` contains the tables of its training."""

    def __init__(self, folder: Path, zone: Optional[str], owner: Optional["tempfile.TemporaryDirectory[str]"]) -> None:
        self.folder = folder
        self.run = Run(folder / "run")
        self.zone: str = zone or self.run.summary["zone"]
        if owner is not None:
            weakref.finalize(self, owner.cleanup)

    def predict(self, level: Sequence[float] = (80,), *, h: Optional[str] = None, at: Optional[str] = None) -> pd.DataFrame:
        """Forecast the steps after the newest reading of each meter.

        The columns are those of Nixtla's libraries: ``unique_id``, ``ds``, the median
        ``loadstar``, and for each level in percent ``loadstar-lo-80`` and ``loadstar-hi-80``.
        ``mean`` adds up over meters and steps; quantiles do not. ``source`` states
        what made a row, and ``reason`` why the model did not.
        """
        quantiles: Dict[str, float] = {"loadstar": 0.5}
        for p in sorted(level):
            if not 0 < p < 100:
                raise LoadstarError(f"level {p} is not between 0 and 100 percent", 2)
            quantiles[f"loadstar-lo-{p:g}"] = round(0.5 - p / 200, 6)
            quantiles[f"loadstar-hi-{p:g}"] = round(0.5 + p / 200, 6)
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "forecast.csv"
            ascending = sorted(set(quantiles.values()))
            levels = ",".join(f"{q:g}" for q in ascending)
            arguments: List[Any] = ["forecast", self.folder / "run", "--data", self.folder / "data", "--levels", levels, "-o", out, "--quiet"]
            if h is not None:
                arguments += ["--h", h]
            if at is not None:
                arguments += ["--at", at]
            run(*arguments)
            rows = _csv(out)
        frame = rows[["unique_id", "cutoff", "ds"]].copy()
        columns = dict(zip(ascending, [c for c in rows.columns if re.fullmatch(r"P[0-9.]+", c)]))  # the columns are in ascending order, too
        for name, q in quantiles.items():
            frame[name] = rows[columns[q]]
        for name in ("mean", "source", "quality", "reason"):
            frame[name] = rows[name]
        for name in ("cutoff", "ds"):
            frame[name] = frame[name].dt.tz_convert(self.zone)
        return frame

    def scores(self, by: str = "method") -> pd.DataFrame:
        """Return the errors of the model and of simple forecasts for the same hours of the test split.

        With ``by="client"``, there is a row for each method and meter. ``relative_mae`` is
        relative to last week's load. A value below 1 means better than last week's load.
        """
        own = self.run.table("clients").assign(method="loadstar")
        both = pd.concat([own, self.run.table("baselines/baselines")], ignore_index=True)
        both = both[["method", "unique_id", "mae", "rmse", "relative_mae"]]
        if by == "client":
            return both
        if by != "method":
            raise LoadstarError(f"scores by {by!r}: choose method or client", 2)
        groups = both.groupby("method", sort=False)
        return pd.DataFrame(
            {
                "clients": groups["unique_id"].count(),
                "mae": groups["mae"].mean(),
                "relative_mae_mean": groups["relative_mae"].mean(),
                "relative_mae_median": groups["relative_mae"].median(),
                "below_one": groups["relative_mae"].agg(lambda r: float((r < 1).mean())),
            }
        ).reset_index()

    def report(self, path: PathLike) -> Path:
        """Write a report as one HTML file, and return its path."""
        run("report", self.folder / "run", "-o", path)
        return Path(path)

    def findings(self) -> pd.DataFrame:
        """Return the findings of ``loadstar data check`` for the data."""
        from ._files import findings

        return findings(self.folder / "data")

    def __repr__(self) -> str:
        return f"<loadstar model of {json.dumps(self.run.summary['plan'])}: {self.run.summary['clients']} clients>"
