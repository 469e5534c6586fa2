#!/usr/bin/env python3
"""Computes the outcome of twenty rules of claims.yaml again, from ours.tsv and the rules' words, with numpy.

It shares no code with `loadstar-lab reproduce`. It prints a line for each rule and writes papers/recomputed.tsv: what the rule
says, and of how many runs that it looks at the last evaluation was the best. A test of rig/paper compares the file with the
program's own outcome. Run it in the repository: python3 papers/recompute.py
"""
import collections
import numpy as np

METHODS = ["FedNorm", "FedAvg", "FedProx", "FedSGD", "FedAdagrad", "FedAdam", "FedYogi", "FedAsync"]
PERSONAL = ["PL-FL 1", "PL-FL 2", "PL-FL 3"]
MASE = "relative_mae_mean"


class Table:
    def __init__(self, paper):
        self.cells = {}
        self.points = collections.defaultdict(list)
        with open(f"papers/{paper}/ours.tsv") as f:
            next(f)
            for line in f:
                part, dataset, method, at, metric, values = line.rstrip("\n").split("\t")
                key = (part, dataset, method, at)
                self.cells[key + (metric,)] = np.array([float(x) if x not in ("", "-") else np.nan for x in values.split(" ")])
                if key not in self.points[part]:
                    self.points[part].append(key)
        self.used = set()

    def has(self, part, dataset, method, metric, at=""):
        return (part, dataset, method, at, metric) in self.cells

    def v(self, part, dataset, method, metric, at=""):
        if metric not in ("gradients", "bytes_per_turn"):
            self.used.add((part, dataset, method, at))
        return self.cells[(part, dataset, method, at, metric)]

    def datasets(self, part):
        return list(dict.fromkeys(k[1] for k in self.points[part]))

    def methods(self, part):
        return list(dict.fromkeys(k[2] for k in self.points[part] if k + ("diverged",) in self.cells))

    def improving(self):
        n = 0
        for key in self.used:
            lost = self.cells.get(key + ("diverged",))
            if lost is None:
                continue
            gain, rose = self.cells.get(key + ("late_gain",)), self.cells.get(key + ("rose",))
            for i, d in enumerate(lost):
                if d > 0:
                    continue
                if gain is not None and not np.isnan(gain[i]):
                    n += gain[i] > 0.001
                else:
                    n += rose is None or not rose[i] > 1
        return int(n)


def clearly(a, b):
    a, b = np.atleast_1d(a), np.atleast_1d(b)
    n = max(len(a), len(b))
    if n < 3 or (len(a) != len(b) and 1 not in (len(a), len(b))):
        return False
    spread = max([np.std(x, ddof=1) for x in (a, b) if len(x) > 1])
    return bool(np.all(np.resize(a, n) < np.resize(b, n)) and b.mean() - a.mean() > spread)


def lower(a, b):
    return bool(np.mean(a) < np.mean(b))


def best(t, part, dataset, metric, methods):
    means = [np.mean(t.v(part, dataset, m, metric)) for m in methods]
    return methods[int(np.argmin([x if x == x else np.inf for x in means]))]


def say(holds, partly):
    return "holds" if holds else "holds partly" if partly else "does not hold here"


RULES = {}


def rule(paper, name):
    return lambda f: RULES.setdefault((paper, name), f)


@rule("bose2023", "personal-layers-beat-pooled")
def _(t):
    win = {x: [all(clearly(t.v("table-iv", d, m, x), t.v("table-iv", d, "No-FL", x)) for m in PERSONAL) for d in t.datasets("table-iv")] for x in (MASE, "mae")}
    both = [a and b for a, b in zip(win[MASE], win["mae"])]
    return say(all(both), all(win[MASE]) or all(win["mae"]) or sum(both) >= 2)


@rule("bose2023", "scale-is-the-cause")
def _(t):
    cause, made_up = [], []
    for d in t.datasets("table-iv-client"):
        shared = [m for m in ("FL", "No-FL") if t.has("table-iv-client", d, m, MASE)]
        cause.append(all(clearly(t.v("table-iv-client", d, m, MASE), t.v("table-iv", d, m, MASE)) for m in shared))
        made_up.append(t.v("table-iv", d, "PL-FL 1", MASE).mean() <= 1.1 * t.v("table-iv-client", d, "PL-FL 1", MASE).mean())
    return say(all(cause) and all(made_up), all(cause))


@rule("bose2023", "why-fl")
def _(t):
    rivals, ours = ["Adam resets", "Adam keeps moments", "Adam averages moments", "Epochs"], "SGD step and server Adam"
    every = [[clearly(t.v("why-fl", d, ours, MASE), t.v("why-fl", d, m, MASE)) for m in rivals] for d in t.datasets("why-fl")]
    return say(all(map(all, every)), all(e[0] for e in every) or any(map(all, every)))


@rule("bose2023", "head-best-by-mae")
def _(t):
    names = t.methods("table-iv")
    first = [best(t, "table-iv", d, "mae", names) == "PL-FL 1" for d in t.datasets("table-iv")]
    beaten = [any(clearly(t.v("table-iv", d, m, "mae"), t.v("table-iv", d, "PL-FL 1", "mae")) for m in names if m != "PL-FL 1") for d in t.datasets("table-iv")]
    return say(all(first), sum(beaten) <= 1)


@rule("bose2023", "no-configuration-wins-by-mase")
def _(t):
    led = {m: [all(clearly(t.v("table-iv", d, m, MASE), t.v("table-iv", d, o, MASE)) for o in PERSONAL if o != m) for d in t.datasets("table-iv")] for m in PERSONAL}
    return say(sum(any(x) for x in led.values()) >= 2, not any(all(x) for x in led.values()))


@rule("bose2023", "personal-beats-persistence")
def _(t):
    cells = sum(t.v("table-iv", d, m, MASE).mean() < 1 for d in t.datasets("table-iv") for m in PERSONAL)
    above = all(t.v("table-iv", d, m, MASE).mean() > 1 for d in t.datasets("table-iv") for m in ("FL", "No-FL"))
    return say(cells >= 8 and above, cells >= 5)


@rule("bose2023", "fl-of-three-clients-loses-to-persistence")
def _(t):
    above = [t.v("table-iii", d, m, MASE).mean() > 1 for d in t.datasets("table-iii") for m in t.methods("table-iii")]
    return say(all(above), sum(above) >= 5)


SERVERS = ["FedAvg", "FedAvgAdaptive", "FedAdagrad", "FedAdam", "FedYogi"]


@rule("bose2024", "p2-beats-fl")
def _(t):
    won = [sum(lower(t.v("grid", d, s, MASE, c + "; P2"), t.v("grid", d, s, MASE, c + "; P1")) for s in SERVERS for c in ("Adam", "AdamAMS", "Prox", "ProxAdam")) for d in t.datasets("grid")]
    return say(min(won) >= 18, min(won) > 10)


@rule("bose2024", "reset-moments-are-better")
def _(t):
    reset = [clearly(t.v("seeds", d, "P2 Adam FedAvg", MASE), t.v("letter", d, "P2 Adam keeps moments", MASE)) for d in t.datasets("seeds")]
    kept = [clearly(t.v("letter", d, "P2 Adam keeps moments", MASE), t.v("seeds", d, "P2 Adam FedAvg", MASE)) for d in t.datasets("seeds")]
    return say(all(reset), any(reset) and not any(kept))


@rule("bose2024", "personal-layers-beat-proximal")
def _(t):
    won = [sum(lower(t.v("grid", d, s, MASE, "Adam; P2"), t.v("grid", d, s, MASE, c + "; P1")) for d in t.datasets("grid") for s in SERVERS) for c in ("Prox", "ProxAdam")]
    return say(min(won) >= 14, min(won) > 7)


@rule("bose2024", "adaptive-clients-beat-proximal")
def _(t):
    first, second = [], []
    for d in t.datasets("seeds"):
        a = best(t, "seeds", d, MASE, ["P2 Adam FedAvg", "P2 AdamAMS FedAvg"])
        first.append(clearly(t.v("seeds", d, a, MASE), t.v("seeds", d, "P2 Prox FedAvg", MASE)))
        k = t.v("letter", d, best(t, "letter", d, MASE, ["P2 Adam keeps moments", "P2 AdamAMS own"]), MASE)
        second.append(clearly(k, t.v("letter", d, "P2 ProxAdam own", MASE)) and clearly(k, t.v("letter", d, "P2 ProxAdam own scored shared", MASE)))
    won = sum(any(lower(t.v("grid", d, s, MASE, f"{c}; {p}"), t.v("grid", d, s, MASE, f"Prox; {p}")) for c in ("Adam", "AdamAMS")) for d in t.datasets("grid") for s in SERVERS for p in ("P1", "P2"))
    return say(all(first) and all(second) and won >= 27, all(first) or all(second))


HOURS = ["eight-hours", "sixteen-hours"]


@rule("fekri2023", "fednorm-lowest-error")
def _(t):
    led = [all(clearly(t.v(p, "sgsc-core19", "FedNorm", x), t.v(p, "sgsc-core19", m, x)) for m in METHODS if m != "FedNorm") for p in HOURS for x in ("mape", "rmse01")]
    return say(all(led), any(led))


@rule("fekri2023", "margin-is-large")
def _(t):
    def lead(p, x):
        other = [t.v(p, "sgsc-core19", m, x).mean() for m in METHODS if m != "FedNorm"]
        if p == "eight-hours":
            other.append(t.v("readings", "sgsc-core19", "FedBuff in periods", x).mean())
        return t.v(p, "sgsc-core19", "FedNorm", x).mean() / min(other)
    leads = {p: [lead(p, x) for x in ("mape", "rmse01")] for p in HOURS}
    return say(all(max(x) <= 0.8 for x in leads.values()), any(max(x) <= 0.95 for x in leads.values()))


@rule("fekri2023", "homes-alike")
def _(t):
    v = lambda m, x: t.v("eight-hours", "sgsc-core19", m, x)
    spans = ("rmse01_iqr", "rmse01_range")
    return say(all(clearly(v("FedNorm", x), v(m, x)) for x in spans for m in METHODS if m != "FedNorm"),
               any(best(t, "eight-hours", "sgsc-core19", x, METHODS) == "FedNorm" for x in spans))


GROUPS = [("compared", "hog-core42"), ("other-groups", "cambridge-core42-2016-17"), ("other-groups", "robin-core42")]


@rule("reddi2021", "wider-good-region")
def _(t):
    losses = []
    for part, m in (("rates", "FedAvg"), ("rates", "FedAvgM"), ("rates-adaptive", "FedAdam"), ("rates-adaptive", "FedYogi")):
        points = [k for k in t.points[part] if k[2] == m and k[1] == "hog-core42"]
        loss = np.array([t.v(*k[:3], "validation_loss_lowest", k[3]).mean() if t.has(*k[:3], "validation_loss_lowest", k[3]) else np.nan for k in points])
        losses.append(np.where(np.isnan(loss), np.inf, loss))
    limit = 1.2 * min(x.min() for x in losses)
    good = [int((x <= limit).sum()) for x in losses]
    few, rest = min(good[2:]), max(good[:2])
    return say(few >= len(losses[2]) / 4 and few >= 1.5 * rest, few >= rest + 3)


@rule("reddi2021", "scaffold-no-better-than-fedavg")
def _(t):
    n = 0
    for p, d in GROUPS:
        n += any(t.has(p, d, m, x) and clearly(t.v(p, d, m, x), t.v(p, d, "FedAvg", x)) for m in ("SCAFFOLD", "SCAFFOLD by examples") if t.has(p, d, m, MASE) for x in (MASE, "validation_loss_late"))
    return say(n == 0, n == 1)


@rule("reddi2021", "client-decay-helps")
def _(t):
    won = [clearly(t.v("decay", "hog-core42", m, "validation_loss_late"), t.v("constant", "hog-core42", m, "validation_loss_late")) for m in t.methods("constant")]
    return say(all(won), sum(won) >= 3)


def homes(t):
    return [("relatives", d) for d in t.datasets("relatives")] + ([("homes", "sgsc")] if t.has("homes", "sgsc", "FedSIM", MASE) else [])


SIX = ["FedAvg", "FedProx", "Per-FedAvg", "FedMeta", "pFedMe", "Fed-Reptile"]


@rule("song2021", "fedsim-best-after-fine-tuning")
def _(t):
    return say(all(clearly(t.v(p, d, "FedSIM", MASE), t.v(p, d, m, MASE)) for p, d in homes(t) for m in SIX),
               any(best(t, p, d, MASE, SIX + ["FedSIM"]) == "FedSIM" for p, d in homes(t)))


@rule("song2021", "second-order-term-helps")
def _(t):
    won = [clearly(t.v(p, d, "FedSIM", MASE), t.v(p, d, "FedSIM first-order", MASE)) for p, d in homes(t)]
    return say(all(won), any(won))


@rule("song2021", "fedavg-is-worst")
def _(t):
    last = [all(t.v(p, d, "FedAvg", MASE).mean() > t.v(p, d, m, MASE).mean() for m in SIX[1:] + ["FedSIM"]) for p, d in homes(t)]
    return say(all(last), any(last))


tables = {}
with open("papers/recomputed.tsv", "w") as out:
    print("paper\tclaim\trule\tstill improving", file=out)
    for (paper, name), f in RULES.items():
        t = tables.setdefault(paper, Table(paper))
        t.used = set()
        outcome = f(t)
        print(f"{paper}\t{name}\t{outcome}\t{t.improving()}", file=out)
        print(f"{paper} {name}: {outcome}, {t.improving()} runs still improving")
print(f"{len(RULES)} rules")
