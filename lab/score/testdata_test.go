package score

// foreign is a script that makes and scores forecasts with other programs. Its files are a
// seasonal naive forecast in the format of Nixtla's libraries, with local times and an
// interval; a forecast by scikit-learn's gradient boosting, with times in UTC; a forecast with
// a leak; and a forecast whose times are an hour late.
const foreign = `
import json, sys
import numpy as np, pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
data, out = sys.argv[1], sys.argv[2]
load = pd.read_csv(data)
wide = load.assign(t=pd.to_datetime(load.ds, utc=True)).pivot(index="t", columns="unique_id", values="y").sort_index().asfreq("H")
cutoffs = pd.date_range("2016-06-01 00:00", "2016-06-20 18:00", freq="6H", tz="UTC") # the newest known hour
hour = pd.Timedelta(hours=1)
parts = []
for c in wide.columns:
    y = wide[c]
    spread = (y - y.shift(168)).loc[:"2016-05-01"].quantile([0.1, 0.9]).values
    x = pd.concat([y.shift(k) for k in (24, 48, 168)], axis=1).assign(h=y.index.hour).values
    known = (y.index < "2016-05-20") & ~np.isnan(x).any(axis=1) & y.notna().values
    m = HistGradientBoostingRegressor(max_iter=10, random_state=0).fit(x[known], y.values[known])
    guess = pd.Series(m.predict(np.nan_to_num(x)), index=y.index)
    at = cutoffs.repeat(24)
    ds = at + pd.to_timedelta(np.tile(np.arange(1, 25), len(cutoffs)), unit="h")
    week = y.reindex(ds - 168 * hour).values
    parts.append(pd.DataFrame({"unique_id": c, "ds": ds, "cutoff": at, "y": y.reindex(ds).values, "SeasonalNaive": week,
        "SeasonalNaive-lo-80": week + spread[0], "SeasonalNaive-hi-80": week + spread[1], "boost": guess.reindex(ds).values}))
both = pd.concat(parts, ignore_index=True)
naive = both.drop(columns="boost")
for name in ("ds", "cutoff"):
    naive[name] = naive[name].dt.tz_convert("Europe/London").dt.tz_localize(None)
naive.to_csv(out + "/naive.csv", index=False)
late = naive.assign(ds=naive.ds + hour, cutoff=naive.cutoff + hour)
late.to_csv(out + "/late.csv", index=False)
boost = both[["unique_id", "ds", "cutoff", "boost"]].assign(cutoff=both.cutoff + hour)
boost.to_csv(out + "/boost.csv", index=False)
boost.loc[5, "cutoff"] = boost.loc[5, "ds"] + hour
boost.to_csv(out + "/leak.csv", index=False)
both = both[both.y.notna() & both.SeasonalNaive.notna() & both.boost.notna()]
by = both.unique_id
last = (both.SeasonalNaive - both.y).abs()
result = {"targets": len(both)}
for name in ("SeasonalNaive", "boost"):
    e = both[name] - both.y
    relative = e.abs().groupby(by).sum() / last.groupby(by).sum()
    result[name] = {"mae": e.abs().groupby(by).mean().mean(), "median": relative.median(), "mean": relative.mean(), "bias": e.groupby(by).mean().mean()}
inside = (both["SeasonalNaive-lo-80"] <= both.y) & (both.y <= both["SeasonalNaive-hi-80"])
result["coverage"] = inside.groupby(by).mean().median()
print(json.dumps(result))
`
