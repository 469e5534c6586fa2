"""Clients for the interfaces of an agent and of a server."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Optional

import pandas as pd

from ._command import LoadstarError
from ._files import PathLike


def _send(request: urllib.request.Request, context: Optional[ssl.SSLContext], timeout: float) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=timeout, context=context) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        body = error.read()
        try:
            problem = json.loads(body)
            text = problem.get("detail") or problem.get("message") or problem.get("title")
        except ValueError:
            text = body.decode("utf-8", "replace")
        raise LoadstarError(f"{request.full_url}: {text or error.reason}", error.code) from None
    except urllib.error.URLError as error:
        raise LoadstarError(f"{request.full_url}: {error.reason}", 1) from None


def _frame(values: Dict[str, Any], client: str) -> pd.DataFrame:
    frame = pd.DataFrame(values).rename(columns={"time": "ds", "load": "y"})
    frame.insert(0, "unique_id", client)
    for name in ("ds", "cutoff"):
        if name in frame:
            frame[name] = pd.to_datetime(frame[name], utc=True)
    return frame


class Agent:
    """The HTTP interface of an agent. Times are UTC."""

    def __init__(self, url: str = "http://127.0.0.1:7446", token: Optional[str] = None, timeout: float = 30) -> None:
        self.url, self.token, self.timeout = url.rstrip("/"), token, timeout

    def call(self, path: str, body: Optional[bytes] = None, content: str = "application/json", **query: Any) -> Any:
        """Call the interface and return the decoded response."""
        text = urllib.parse.urlencode({k: v for k, v in query.items() if v is not None})
        request = urllib.request.Request(self.url + path + ("?" + text if text else ""), data=body)
        if body is not None:
            request.add_header("Content-Type", content)
        if self.token:
            request.add_header("Authorization", "Bearer " + self.token)
        return _send(request, None, self.timeout)

    def _of(self, what: str, client: str, tail: str = "", **query: Any) -> Any:
        return self.call(f"/v1/{what}/{urllib.parse.quote(client, safe='')}{tail}", **query)

    def clients(self) -> pd.DataFrame:
        """Return the clients and groups, with their newest reading and the source of their newest forecast."""
        return pd.json_normalize(self.call("/v1/clients")["clients"])

    def push(self, df: pd.DataFrame) -> Dict[str, Any]:
        """Send readings: unique_id, ds with an offset, y in kW. The result lists refused rows with the reasons."""
        rows = df[["unique_id", "ds", "y"]].copy()
        if getattr(rows["ds"].dt, "tz", None) is None:
            raise LoadstarError("ds has no offset: use ds.dt.tz_localize first", 2)
        rows["ds"] = rows["ds"].dt.tz_convert("UTC").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
        return self.call("/v1/readings", rows.to_csv(index=False).encode(), "text/csv")

    def forecast(self, client: str, h: Optional[str] = None, levels: Optional[str] = None) -> pd.DataFrame:
        """Return the newest forecast of a client."""
        return _frame(self._of("forecasts", client, h=h, levels=levels)["values"], client)

    def issue(self, client: str, h: Optional[str] = None, levels: Optional[str] = None) -> pd.DataFrame:
        """Forecast a client now, and return the forecast."""
        return _frame(self._of("forecasts", client, body=b"", h=h, levels=levels)["values"], client)

    def issued(self, client: str, lead: str = "24h", start: Any = None, end: Any = None) -> pd.DataFrame:
        """Return the loads, with the forecasts that were made ``lead`` ahead."""
        return _frame(self._of("forecasts", client, "/issued", lead=lead, **{"from": start, "to": end})["values"], client)

    def readings(self, client: str, start: Any = None, end: Any = None) -> pd.DataFrame:
        """Return the loads of a client in kW."""
        return _frame(self._of("readings", client, **{"from": start, "to": end})["values"], client)

    def scores(self, client: str) -> pd.DataFrame:
        """Return the errors of a client's forecasts over the last 1, 7 and 28 days."""
        return pd.json_normalize(self._of("scores", client)["scores"])

    def findings(self, client: str) -> pd.DataFrame:
        """Return the problems of a client's readings."""
        return pd.DataFrame(self._of("quality", client)["findings"], columns=["code", "message", "advice"])


class Server:
    """A server's interface for operators, called with an operator's certificate.

    ``call`` calls any method of ``loadstar.v1.OperatorService``.
    """

    def __init__(self, url: str, cert: PathLike, key: PathLike, ca: PathLike, timeout: float = 30) -> None:
        self.url, self.timeout = url.rstrip("/"), timeout
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._tls.load_cert_chain(str(cert), str(key))

    def call(self, method: str, **fields: Any) -> Dict[str, Any]:
        """Call a method, such as call("GetRun", run="k3v9x2ab"). Fields have the names in the .proto file."""
        request = urllib.request.Request(f"{self.url}/loadstar.v1.OperatorService/{method}", data=json.dumps(fields).encode(), headers={"Content-Type": "application/json"})
        answer: Dict[str, Any] = _send(request, self._tls, self.timeout)
        return answer

    def _list(self, method: str, field: str, **fields: Any) -> pd.DataFrame:
        return pd.json_normalize(self.call(method, **fields).get(field, []))

    def runs(self) -> pd.DataFrame:
        """Return the runs."""
        return self._list("ListRuns", "runs")

    def agents(self) -> pd.DataFrame:
        """Return the agents."""
        return self._list("ListAgents", "agents")

    def clients(self) -> pd.DataFrame:
        """Return the clients of the fleet."""
        rows: List[Dict[str, Any]] = []
        page = {"next": ""}
        while True:
            page = self.call("ListClients", after=page["next"], limit=1000)
            rows += page.get("clients", [])
            if not page.get("next"):
                return pd.json_normalize(rows)

    def releases(self) -> pd.DataFrame:
        """Return the released models."""
        return self._list("ListReleases", "releases")

    def findings(self, days: int = 7) -> pd.DataFrame:
        """Return the kinds of problems with readings in the last days, and how many clients have each of them."""
        return self._list("ListFindings", "findings", days=days)
