"""Gradient boosting on the rows that loadstar-lab bench writes.

The argument names the library: sklearn or xgboost. The program reads one request per line
from standard input and answers each with one line of JSON. A request names one or
several folders, each with the rows of one client. The program fits one model to all of them.
If there are several, the number of the client is an additional input.

  train.x, validation.x, test.x   inputs, float32, row by row
  train.y, validation.y, test.y   targets as the models see them, float32
  validation.kw, test.kw          the target of each row in kW, float32
  validation.zero, test.zero      the load in kW that an output of 0 stands for, float32

A load in kW is the output times the client's deviation, plus zero. The program writes the
forecasts of the test rows, in kW, to test.p.
"""
import json
import os
import sys
import time

try:
    import numpy as np
    if sys.argv[1] == "xgboost":
        import xgboost as library
    else:
        import sklearn as library
        from sklearn.ensemble import HistGradientBoostingRegressor
except ImportError as e:
    sys.exit(f"No module named: {e}")


def read(folder, name):
    return np.fromfile(os.path.join(folder, name), dtype=np.float32)


class Rows:
    """The rows of all clients in a split."""

    def __init__(self, request, name):
        self.folders, self.deviations, self.name = request["folders"], request["deviations"], name
        parts = [read(f, name + ".x").reshape(-1, request["inputs"]) for f in self.folders]
        self.ends = np.cumsum([len(p) for p in parts])[:-1]
        if len(parts) > 1:
            parts = [np.column_stack([p, np.full(len(p), i, np.float32)]) for i, p in enumerate(parts)]
        self.x = np.concatenate(parts)
        self.y = np.concatenate([read(f, name + ".y") for f in self.folders])
        if name != "train":
            self.zero = [read(f, name + ".zero") for f in self.folders]
            self.actual = [read(f, name + ".kw") for f in self.folders]

    def kw(self, output):
        return [o * d + z for o, d, z in zip(np.split(output, self.ends), self.deviations, self.zero)]

    def errors(self, output):
        return [float(np.mean(np.abs(p - a))) for p, a in zip(self.kw(output), self.actual)]

    def error(self, output):
        """The mean over clients of the error relative to the client's deviation."""
        return float(np.mean([e / d for e, d in zip(self.errors(output), self.deviations)]))


def sklearn_fit(request, train, validation):
    # Add trees in steps. After each step, measure all numbers of trees so far on the validation
    # split. Stop when patience trees have not improved the error.
    model = HistGradientBoostingRegressor(
        loss=request["loss"], learning_rate=request["rate"], max_leaf_nodes=request["leaves"],
        early_stopping=False, warm_start=True, random_state=0)
    trees = 0
    while trees < request["most"]:
        trees = min(trees + 100, request["most"])
        model.set_params(max_iter=trees).fit(train.x, train.y)
        errors = [validation.error(p) for p in model.staged_predict(validation.x)]
        best = int(np.argmin(errors))
        if best + 1 + request["patience"] <= trees:
            break
    return best + 1, lambda x: next(p for k, p in enumerate(model.staged_predict(x)) if k == best)


def absolute(output, rows):
    # reg:absoluteerror of xgboost 1.7 does not apply the learning rate, so the first trees
    # overfit. With this gradient and curvature, a leaf's value is a step of iteratively
    # reweighted least squares towards the median, which the learning rate shortens.
    r = output - rows.get_label()
    size = np.sqrt(r * r + 0.01)
    return r / size, 1 / size


def xgboost_fit(request, train, validation):
    bins = 64
    rows = library.QuantileDMatrix(train.x, train.y, max_bin=bins)
    check = library.QuantileDMatrix(validation.x, validation.y, ref=rows, max_bin=bins)
    settings = {
        "tree_method": "hist", "max_bin": bins, "max_depth": request["depth"], "eta": request["rate"], "min_child_weight": request["weight"],
        "colsample_bytree": 0.3, "subsample": 0.8, "base_score": 0.0, "eval_metric": "mae", "nthread": 1, "seed": 0, "verbosity": 0}
    model = library.train(settings, rows, request["most"], evals=[(check, "validation")], obj=absolute,
                          early_stopping_rounds=request["patience"], verbose_eval=False)
    best = model.best_iteration + 1
    return best, lambda x: model.predict(library.DMatrix(x), iteration_range=(0, best))


def fit(request):
    start = time.process_time()
    train, validation, test = (Rows(request, name) for name in ("train", "validation", "test"))
    trees, predict = (xgboost_fit if sys.argv[1] == "xgboost" else sklearn_fit)(request, train, validation)
    output = predict(test.x)
    for folder, kw in zip(test.folders, test.kw(output)):
        kw.astype(np.float32).tofile(os.path.join(folder, "test.p"))
    return {
        "trees": trees, "validation_mae": validation.errors(predict(validation.x)), "test_mae": test.errors(output),
        "cpu_s": time.process_time() - start,
    }


print(json.dumps({"name": f"{library.__name__} {library.__version__}"}), flush=True)
for line in sys.stdin:
    print(json.dumps(fit(json.loads(line))), flush=True)
