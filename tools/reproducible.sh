#!/usr/bin/env bash
# Builds a release for one platform from two clones in different folders and compares the
# bytes of all files.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commit=$(git rev-parse HEAD)
for name in one another; do
	git clone -q . "$work/$name/loadstar"
	git -C "$work/$name/loadstar" checkout -q "$commit"
	make -s -C "$work/$name/loadstar" release PLATFORMS="${PLATFORMS:-linux-amd64}" VERSION="${VERSION:-v0.0.0-test}" >/dev/null
done
diff "$work"/{one,another}/loadstar/dist/release/SHA256SUMS
(cd "$work/another/loadstar/dist/release" && sha256sum --quiet -c SHA256SUMS && wc -l <SHA256SUMS | xargs echo "two builds are identical; files:")
