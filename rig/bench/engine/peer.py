"""The peer of `loadstar-lab bench engine --peer`: PyTorch with the identical model.

    peer.py bench MODEL       measures bose2023 or dense; answers requests on standard input,
                              one JSON line each: "train SECONDS" and "infer BATCH SECONDS"
                              -> {"per_s": ...}
    peer.py golden FOLDER     writes golden files for the tests of ../../../forecast

It uses one thread and measures CPU time. It needs Debian's python3-torch and libopenblas0.
"""

import ctypes
import json
import os
import struct
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import torch
from torch import nn

torch.set_num_threads(1)


class Bose2023(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 20, num_layers=2, batch_first=True)
        self.fc = nn.Sequential(
            nn.Linear(240, 120), nn.PReLU(120), nn.Linear(120, 60), nn.PReLU(60), nn.Linear(60, 1)
        )

    def forward(self, x):
        hidden, _ = self.lstm(x)
        return self.fc(hidden.reshape(x.shape[0], -1))


class Fekri2023(nn.Module):
    def __init__(self, horizon):
        super().__init__()
        self.lstm = nn.LSTM(6, 32, batch_first=True)
        self.fc = nn.Linear(32, horizon)

    def forward(self, x):
        hidden, _ = self.lstm(x)
        return self.fc(hidden[:, -1])


class Dense(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, 96), nn.PReLU(96), nn.Linear(96, 96), nn.PReLU(96))
        self.head = nn.Linear(96 + inputs, outputs)
        self.correction = nn.Sequential(
            nn.Linear(96 + inputs, 64), nn.PReLU(64), nn.Linear(64 + 96 + inputs, outputs)
        )

    def forward(self, x):
        first = self.trunk[:2](x)
        both = torch.cat([self.trunk[2:](first) + first, x], 1)
        hidden = self.correction[:2](both)
        return self.head(both) + self.correction[2](torch.cat([hidden, both], 1))


def vary_slopes(layers):
    """Gives PReLU layers different slopes, so that the tests detect swapped ones."""
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, nn.PReLU):
                layer.weight.uniform_(0.05, 0.45)


def blas():
    """Returns the name of PyTorch's BLAS. With the reference BLAS, the comparison is unfair."""
    with open("/proc/self/maps") as maps:
        libs = {line.split()[-1] for line in maps if "blas" in line or "mkl" in line}
    for path in sorted(libs):
        lib = ctypes.CDLL(path)
        if hasattr(lib, "openblas_get_config"):
            lib.openblas_get_config.restype = ctypes.c_char_p
            lib.openblas_get_corename.restype = ctypes.c_char_p
            config = lib.openblas_get_config().decode().split()
            return "%s %s (%s)" % (config[0], config[1], lib.openblas_get_corename().decode())
    return "reference BLAS"


def rate(step, seconds):
    """Returns the number of calls of step per CPU second."""
    for _ in range(3):
        step()
    calls, start = 0, time.process_time()
    while True:
        step()
        calls += 1
        spent = time.process_time() - start
        if spent >= seconds:
            return calls / spent


def bench(name):
    torch.manual_seed(1)
    if name == "dense":
        model, window, loss = Dense(140, 3), (140,), pinball([0.1, 0.5, 0.9])
    else:
        model, window, loss = Bose2023(), (12, 8), nn.functional.mse_loss
    x, y = torch.randn(64, *window), torch.randn(64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    torch.mm(y.t(), y)  # loads the BLAS

    def train():
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    def infer(batch):
        windows = torch.randn(batch, *window)

        def step():
            with torch.inference_mode():
                model(windows)

        return step

    print(json.dumps({"name": "PyTorch %s, %s" % (torch.__version__, blas())}), flush=True)
    for line in sys.stdin:
        request = line.split()
        if request[0] == "train":
            per_s = rate(train, float(request[1]))
        else:
            batch = int(request[1])
            per_s = batch * rate(infer(batch), float(request[2]))
        print(json.dumps({"per_s": per_s}), flush=True)


def save(path, tensors):
    """Writes a .safetensors file."""
    header, offset = {}, 0
    for name, t in tensors.items():
        size = 4 * t.numel()
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.detach().contiguous().numpy().tobytes())


def golden(path, model, x, y, loss):
    """Writes outputs, losses, the first gradient and the weights after 0, 1 and 20 Adam steps."""
    tensors = {"x": x, "y": y}

    def keep(prefix, grad=False):
        for name, p in model.named_parameters():
            tensors[prefix + name] = (p.grad if grad else p).detach().clone()

    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    keep("w0.")
    losses = []
    for step in range(20):
        optimizer.zero_grad()
        out = model(x)
        value = loss(out, y)
        value.backward()
        losses.append(value.item())
        if step == 0:
            tensors["out"] = out.detach()
            keep("grad.", grad=True)
        optimizer.step()
        if step == 0:
            keep("w1.")
    keep("w20.")
    tensors["losses"] = torch.tensor(losses)
    save(path, tensors)


def pinball(quantiles):
    q = torch.tensor(quantiles)

    def loss(out, y):
        error = y.unsqueeze(2) - out.reshape(y.shape[0], y.shape[1], len(quantiles))
        return torch.maximum(q * error, (q - 1) * error).mean()

    return loss


def write_golden(folder):
    torch.manual_seed(1)
    model = Bose2023()
    vary_slopes(model.fc)
    x, y = torch.randn(64, 12, 8), torch.randn(64, 1)
    golden(os.path.join(folder, "bose2023-mse.safetensors"), model, x, y, nn.functional.mse_loss)

    torch.manual_seed(2)
    x, y = torch.randn(7, 24, 6), torch.randn(7, 8)
    golden(os.path.join(folder, "fekri2023-mae.safetensors"), Fekri2023(8), x, y, nn.functional.l1_loss)
    golden(os.path.join(folder, "fekri2023-pinball.safetensors"), Fekri2023(24), x, y, pinball([0.1, 0.5, 0.9]))

    torch.manual_seed(3)
    model = Dense(20, 3)
    vary_slopes([*model.trunk, *model.correction])
    # With 63 examples, the gradient of the quantiles' biases cannot be zero. Adam's first step
    # would turn the rounding error of a zero gradient into a whole step.
    x, y = torch.randn(63, 20), torch.randn(63, 1)
    golden(os.path.join(folder, "dense-pinball.safetensors"), model, x, y, pinball([0.1, 0.5, 0.9]))


if __name__ == "__main__":
    if sys.argv[1] == "bench":
        bench(sys.argv[2])
    else:
        write_golden(sys.argv[2])
