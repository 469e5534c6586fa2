#!/usr/bin/env bash
# Tests a package on an emulated processor: test-arm.sh FOLDER arm64|armv7 PACKAGE
# The folder is for the test's binary and its output, which is printed if the test fails.
set -euo pipefail
folder=$1 arch=$2 package=$3
export CGO_ENABLED=0
case $arch in
arm64) env=(GOARCH=arm64) emulator=qemu-aarch64-static kernels="neon portable" ;;
armv7) env=(GOARCH=arm GOARM=7) emulator=qemu-arm-static kernels="portable" ;;
esac
name=$folder/$arch-${package//\//-}
env "${env[@]}" go test -c -o "$name" "$package"
cd "$package"
begin=$SECONDS
if LOADSTAR_TEST_KERNELS=$kernels "$emulator" "$name" -test.short >"$name.log" 2>&1; then
	echo "ok $arch $package $((SECONDS - begin)) s"
else
	echo "FAIL $arch $package"
	cat "$name.log"
	exit 1
fi
