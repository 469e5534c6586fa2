#!/usr/bin/env bash
# Signs a file: sign.sh FILE KEY writes FILE.minisig, with a key of minisign, which asks for
# the key's password. The comment, which is signed too, has the version.
set -euo pipefail
command -v minisign >/dev/null || { echo "sign.sh: install minisign" >&2; exit 1; }
minisign -S -s "$2" -m "$1" -t "loadstar ${VERSION:-unknown}"
