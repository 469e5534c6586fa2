"""Gradient boosting with scikit-learn on the rows that loadstar bench skill writes.

The program reads one request per line from standard input and answers each with one line
of JSON. A request names a folder with the rows of one client:

  train.x, validation.x, test.x   inputs, float32, row by row
  train.y, validation.y, test.y   targets as the models see them, float32
  validation.kw, test.kw          the target of each row in kW, float32
  validation.zero, test.zero      the load in kW that an output of 0 stands for, float32

A load in kW is the output times the client's deviation, plus zero.
"""
import json
import os
import sys
import time

try:
    import numpy as np
    import sklearn
    from sklearn.ensemble import HistGradientBoostingRegressor
except ImportError as e:
    sys.exit(f"No module named: {e}")


def read(folder, name):
    return np.fromfile(os.path.join(folder, name), dtype=np.float32)


def fit(request):
    start = time.process_time()
    folder, deviation = request["folder"], request["deviation"]
    rows = {name: read(folder, name + ".x").reshape(-1, request["inputs"]) for name in ("train", "validation", "test")}
    y = read(folder, "train.y")

    def error(name, output):
        return float(np.mean(np.abs(output * deviation + read(folder, name + ".zero") - read(folder, name + ".kw"))))

    # Trees are added in steps. Each step measures all numbers of trees so far on the
    # validation split, and the last one is reached if the best number lies far behind.
    model = HistGradientBoostingRegressor(
        loss=request["loss"], learning_rate=request["rate"], max_leaf_nodes=request["leaves"],
        early_stopping=False, warm_start=True, random_state=0)
    trees = 0
    while trees < request["most"]:
        trees = min(trees + 100, request["most"])
        model.set_params(max_iter=trees).fit(rows["train"], y)
        errors = [error("validation", p) for p in model.staged_predict(rows["validation"])]
        best = int(np.argmin(errors))
        if best + 1 + request["patience"] <= trees:
            break
    test = next(p for k, p in enumerate(model.staged_predict(rows["test"])) if k == best)
    return {
        "trees": best + 1, "validation_mae": errors[best], "test_mae": error("test", test),
        "cpu_s": time.process_time() - start,
    }


print(json.dumps({"name": f"scikit-learn {sklearn.__version__}"}), flush=True)
for line in sys.stdin:
    print(json.dumps(fit(json.loads(line))), flush=True)
