#!/usr/bin/env bash
# Installs the packages in a minimal Debian, runs the services as their units say, upgrades
# and removes them, and runs the image with an OCI runtime. Needs root, mmdebstrap, crun and
# iproute2. ROOT names an unpacked Debian to use instead of a new one, for repeated runs.
set -euo pipefail
cd "$(dirname "$0")/.."
for command in mmdebstrap crun ip unshare setpriv python3; do
	command -v $command >/dev/null || { echo "package-test needs $command"; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "package-test needs root, for chroot and namespaces"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "-- a minimal Debian"
if [ -n "${ROOT:-}" ]; then
	cp -a "$ROOT" "$work/root"
else
	. /etc/os-release
	mmdebstrap -q --variant=apt --include=adduser "$VERSION_CODENAME" "$work/root" \
		"$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" | head -1)" &
	debootstrap=$!
fi


echo "-- packages and images"
export EPOCH=${EPOCH:-$(git log -1 --format=%ct)} DIST=$work/dist PLATFORMS=linux-amd64
make -s man DIST="$DIST" EPOCH="$EPOCH"
VERSION=v0.0.2 tools/release.sh
mkdir "$work/stage" "$work/old" "$work/layout"
cp -r "$DIST/man" "$DIST/completions" "$DIST"/bin/linux-amd64/*.third-party.txt "$work/stage"
(cd tools && go run ./package -bin "$DIST/bin/linux-amd64" -stage "$work/stage" -version v0.0.1 -epoch "$EPOCH" -out "$work/old")
tar -C "$work/layout" -xf "$DIST/release/loadstar_0.0.2_oci.tar"
(cd tools && go run ./image unpack -layout "$work/layout" -out "$work/bundle" -host-network -bind "$work/data:/data" serve --dir /data --watch 127.0.0.1:7444)
(cd tools && go run ./image unpack -layout "$work/layout" -out "$work/version" version)
[ -n "${ROOT:-}" ] || wait $debootstrap

mkdir "$work/root/packages"
cp "$work"/old/*.deb "$DIST"/release/*.deb "$work/root/packages"
install -d -o 65532 -g 65532 -m 0700 "$work/data"
# Namespaces of its own give the test its ports, and end its processes with it.
unshare --mount --net --pid --ipc --fork --kill-child bash tools/package-test-inside.sh "$work" plans/hour-ahead.yaml
