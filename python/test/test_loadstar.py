"""Tests of the installed package, with real commands. make python-test runs them."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import numpy as np
import pandas as pd

import loadstar

ROUNDS = 40


def frame(meters: int = 4, days: int = 120, zone: str = "Europe/Berlin") -> pd.DataFrame:
    """Loads with a daily and a weekly cycle, the same in every run."""
    rng = np.random.default_rng(1)
    ds = pd.date_range("2024-01-01", periods=24 * days, freq="h", tz=zone)
    parts = []
    for i in range(meters):
        shape = 1 + 0.5 * np.sin(2 * np.pi * (ds.hour - 6) / 24) * (1 if i % 2 else 0.6) + 0.3 * (ds.dayofweek < 5)
        y = (5 + 3 * i) * (np.asarray(shape) + 0.1 * rng.standard_normal(len(ds)))
        parts.append(pd.DataFrame({"unique_id": f"00{i}", "ds": ds, "y": y.round(3)}))
    return pd.concat(parts, ignore_index=True)


class Fit(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.df = frame()
        cls.model = loadstar.fit(cls.df, zone="Europe/Berlin", h="24h", rounds=ROUNDS)

    def test_figures_are_those_of_the_command(self) -> None:
        with tempfile.TemporaryDirectory() as d:
            # Describe and train the same data by hand, in another format.
            wide = self.df.assign(ds=self.df["ds"].dt.strftime("%Y-%m-%dT%H:%M:%S%z"))
            wide.to_csv(d + "/readings.csv", index=False)
            (pathlib.Path(d) / "plan.yaml").write_text("name: day-ahead\nmodel: {name: dense, targets: 24h}\nalgorithm: fedavg\n")
            loadstar.run("data", "init", d, "--zone", "Europe/Berlin", "--stamp", "start", "--unit", "kW", "--yes", "--name", "data")
            loadstar.run("simulate", d + "/plan.yaml", "--data", d, "--out", d + "/run", "--rounds", ROUNDS, "--quiet")
            loadstar.run("forecast", d + "/run", "--data", d, "-o", d + "/forecast.csv", "--quiet")
            run, rows = loadstar.read_run(d + "/run"), loadstar.read_forecasts(d + "/forecast.csv")
            clients = run.table("clients")
        own = self.model.run
        for key in ("weights_sha256", "mae", "relative_mae"):
            self.assertEqual(own.summary[key], run.summary[key], key)
        pd.testing.assert_frame_equal(own.table("clients"), clients)
        p = self.model.predict(level=[80])
        self.assertEqual(len(p), 4 * 24)
        for name, column in (("loadstar", "P50"), ("loadstar-lo-80", "P10"), ("loadstar-hi-80", "P90"), ("mean", "mean")):
            np.testing.assert_array_equal(p[name], rows[column])
        s = self.model.scores().set_index("method")
        self.assertAlmostEqual(s.loc["loadstar", "relative_mae_median"], run.summary["relative_mae"]["median"], places=12)
        self.assertAlmostEqual(s.loc["loadstar", "mae"], run.summary["mae"], places=12)
        self.assertIn("ridge-rich", s.index)

    def test_predict(self) -> None:
        p = self.model.predict(level=[50, 90], h="12h")
        self.assertEqual(list(p.columns[:8]), ["unique_id", "cutoff", "ds", "loadstar", "loadstar-lo-50", "loadstar-hi-50", "loadstar-lo-90", "loadstar-hi-90"])
        self.assertEqual(sorted(p["unique_id"].unique()), ["000", "001", "002", "003"])  # strings, not numbers
        self.assertEqual(p["ds"].min(), self.df["ds"].max() + pd.Timedelta("1h"))
        self.assertEqual(str(p["ds"].dt.tz), "Europe/Berlin")
        self.assertTrue((p["loadstar-lo-90"] <= p["loadstar-lo-50"]).all() and (p["loadstar-hi-50"] <= p["loadstar-hi-90"]).all())
        with self.assertRaisesRegex(loadstar.LoadstarError, "level 0 is not"):
            self.model.predict(level=[0])

    def test_scores_by_client(self) -> None:
        s = self.model.scores(by="client")
        self.assertEqual(len(s[s["method"] == "loadstar"]), 4)
        with self.assertRaises(loadstar.LoadstarError):
            self.model.scores(by="hour")

    def test_report_and_findings(self) -> None:
        with tempfile.TemporaryDirectory() as d:
            path = self.model.report(d + "/report.html")
            self.assertIn("<html", path.read_text(encoding="utf-8")[:2000])
        self.assertIn("under-a-year", set(self.model.findings()["code"]))

    def test_weights(self) -> None:
        self.assertEqual(self.model.run.weights()["trunk.2.weight"].shape[0], 96)
        with self.assertRaisesRegex(loadstar.LoadstarError, "it has .*clients"):
            self.model.run.table("client")

    def test_local_times(self) -> None:
        """Check that times without an offset are local, and that the repeated hour in October is read in order."""
        naive = self.df[self.df["unique_id"] == "000"].copy()
        naive["ds"] = naive["ds"].dt.tz_localize(None)
        with tempfile.TemporaryDirectory() as d:
            m = loadstar.fit(naive, zone="Europe/Berlin", rounds=2, folder=d + "/m")
            self.assertEqual(m.predict()["ds"].min(), self.df["ds"].max() + pd.Timedelta("1h"))
            again = loadstar.load(d + "/m")
            pd.testing.assert_frame_equal(again.predict(), m.predict())
            with self.assertRaisesRegex(loadstar.LoadstarError, "already has a model"):
                loadstar.fit(naive, zone="Europe/Berlin", folder=d + "/m")

    def test_errors_have_the_text_of_the_command(self) -> None:
        with self.assertRaisesRegex(loadstar.LoadstarError, "Europe/Berlino"):
            loadstar.fit(self.df, zone="Europe/Berlino")
        with self.assertRaisesRegex(loadstar.LoadstarError, "no column y"):
            loadstar.fit(self.df.drop(columns="y"), zone="UTC")
        with self.assertRaisesRegex(loadstar.LoadstarError, "no finished run"):
            loadstar.read_run("nowhere")
        with self.assertRaises(loadstar.LoadstarError) as caught:
            loadstar.run("no-such-command")
        self.assertEqual(caught.exception.code, 2)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class Service:
    """A command in the background, until the end of a test."""

    def __init__(self, test: unittest.TestCase, *arguments: str, ready) -> None:
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([loadstar.command(), *arguments], stdout=self.log, stderr=self.log)
        test.addCleanup(self.end)
        deadline = time.monotonic() + 60
        while True:
            try:
                ready()
                return
            except (loadstar.LoadstarError, OSError):
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.log.seek(0)
                    raise AssertionError(self.log.read().decode())
                time.sleep(0.1)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.log.close()


class Interfaces(unittest.TestCase):
    def test_agent(self) -> None:
        d = tempfile.mkdtemp()
        port = free_port()
        pathlib.Path(d, "agent.yaml").write_text(f"site: {{zone: Europe/Berlin, interval: 1h}}\nclients: {{boiler: }}\nhttp: {{listen: '127.0.0.1:{port}'}}\n")
        agent = loadstar.Agent(f"http://127.0.0.1:{port}")
        Service(self, "agent", "run", "--config", d + "/agent.yaml", "--dir", d + "/state", ready=agent.clients)
        end = pd.Timestamp.now(tz="UTC").floor("h")
        ds = pd.date_range(end - pd.Timedelta("10d"), end, freq="h", inclusive="left")
        y = 5 + np.sin(2 * np.pi * ds.hour / 24)
        answer = agent.push(pd.DataFrame({"unique_id": "boiler", "ds": ds, "y": y}))
        self.assertEqual(answer["accepted"], len(ds))
        got = agent.readings("boiler", start=int(ds[0].timestamp()), end=int(end.timestamp()))
        np.testing.assert_allclose(got["y"], y, rtol=1e-6)
        f = agent.issue("boiler", h="24h")
        pd.testing.assert_frame_equal(agent.forecast("boiler", h="24h"), f)
        self.assertEqual(f["ds"].iloc[0], end)
        self.assertTrue((f["P10"] <= f["P90"]).all())
        self.assertEqual(list(agent.clients()["client"]), ["boiler"])
        agent.scores("boiler"), agent.findings("boiler"), agent.issued("boiler", lead="1h")
        with self.assertRaises(loadstar.LoadstarError) as caught:
            agent.forecast("oven")
        self.assertEqual(caught.exception.code, 404)
        with self.assertRaisesRegex(loadstar.LoadstarError, "tz_localize"):
            agent.push(pd.DataFrame({"unique_id": "boiler", "ds": ds.tz_localize(None), "y": y}))

    def test_server(self) -> None:
        d = tempfile.mkdtemp()
        port = free_port()
        def connect() -> loadstar.Server:
            own = d + "/operator/"
            s = loadstar.Server(f"https://localhost:{port}", own + "cert.pem", own + "key.pem", own + "ca.pem")
            s.call("Whoami")
            return s
        Service(self, "serve", "--dir", d, "--listen", f"127.0.0.1:{port}", ready=connect)
        s = connect()
        for frame in (s.runs(), s.agents(), s.clients(), s.releases(), s.findings()):
            self.assertEqual(len(frame), 0)
        with self.assertRaises(loadstar.LoadstarError) as caught:
            s.call("GetRun", run="nothing")
        self.assertEqual(caught.exception.code, 404)


if __name__ == "__main__":
    unittest.main()
