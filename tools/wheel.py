#!/usr/bin/python3
"""Builds a wheel of the Python package with a binary of the command, without a network.

usage: wheel.py --binary PATH --platform linux-amd64 --version VERSION --out DIR

The binary is a script of the wheel, so that installing the wheel installs the command. The
same commit gives the same bytes, because SOURCE_DATE_EPOCH is the time of all files.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import re
import time
import zipfile

# The binary is static, so it runs with any C library.
TAGS = {
    "linux-amd64": ["manylinux2014_x86_64", "manylinux_2_17_x86_64", "musllinux_1_1_x86_64"],
    "linux-arm64": ["manylinux2014_aarch64", "manylinux_2_17_aarch64", "musllinux_1_1_aarch64"],
    "darwin-arm64": ["macosx_12_0_arm64"],
    "windows-amd64": ["win_amd64"],
}


def normal(version: str) -> str:
    """Convert a version from git describe to Python's format, such as 1.2.3.post4+gabcdef1."""
    m = re.fullmatch(r"v?(\d+(?:\.\d+)*)(?:-(\d+)-(g[0-9a-f]+))?(-dirty)?", version)
    if m:
        release, commits, commit, dirty = m.groups()
    else:
        release, commits, commit, dirty = "0", None, "g" + re.sub(r"[^0-9a-z]", "", version.lower().replace("-dirty", "")), version.endswith("-dirty")
    local = ".".join(x for x in (commit, "dirty" if dirty else None) if x)
    return release + (f".post{commits}" if commits else "") + (f"+{local}" if local else "")


def main() -> None:
    p = argparse.ArgumentParser()
    for name in ("binary", "platform", "version", "out"):
        p.add_argument("--" + name, required=True)
    a = p.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    version, tags = normal(a.version), TAGS[a.platform]
    info, data = f"loadstar-{version}.dist-info", f"loadstar-{version}.data"
    files = {f"loadstar/{f.name}": f.read_bytes() for f in sorted((root / "python/loadstar").iterdir()) if f.suffix in (".py", ".typed")}
    name = "loadstar.exe" if a.platform.startswith("windows") else "loadstar"
    files[f"{data}/scripts/{name}"] = pathlib.Path(a.binary).read_bytes()
    files[f"{info}/METADATA"] = (
        "Metadata-Version: 2.1\n"
        "Name: loadstar\n"
        f"Version: {version}\n"
        "Summary: Forecasts of electricity loads, trained across many meters without collecting their readings\n"
        "Requires-Python: >=3.9\n"
        "Requires-Dist: numpy\n"
        "Requires-Dist: pandas\n"
        "License-File: LICENSE\n"
        "Description-Content-Type: text/markdown\n\n" + (root / "docs/python.md").read_text(encoding="utf-8")
    ).encode()
    files[f"{info}/LICENSE"] = (root / "LICENSE").read_bytes()
    files[f"{info}/WHEEL"] = ("Wheel-Version: 1.0\nGenerator: tools/wheel.py\nRoot-Is-Purelib: false\n" + "".join(f"Tag: py3-none-{t}\n" for t in tags)).encode()
    record = "".join(f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b'=').decode()},{len(b)}\n" for n, b in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"loadstar-{version}-py3-none-{'.'.join(tags)}.whl"
    moment = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")), 315532800))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for n, b in files.items():
            entry = zipfile.ZipInfo(n, moment)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o100755 if "/scripts/" in n else 0o100644) << 16
            z.writestr(entry, b)
    print(path)


main()
