#!/usr/bin/env bash
# Builds a release into $DIST for $PLATFORMS. 'make release' calls it. Everything is made
# from the commit: the same commit gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${VERSION:?}" "${EPOCH:?}" "${DIST:?}" "${PLATFORMS:?}"
export SOURCE_DATE_EPOCH=$EPOCH TZ=UTC LC_ALL=C
plain=${VERSION#v}
revision=$(git rev-parse HEAD)
rm -rf "$DIST/bin" "$DIST/release"
mkdir -p "$DIST/bin" "$DIST/release"
locks=$(git ls-files --full-name 'web/*package-lock.json' | sed "s|^|$PWD/|" | paste -sd,)
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
go -C tools build -o "$tools/" ./package ./image ./sbom

for platform in $PLATFORMS; do
	os=${platform%-*} arch=${platform#*-} arm= suffix=
	[ "$arch" != armv7 ] || { arch=arm arm=7; }
	[ "$os" != windows ] || suffix=.exe
	bin=$DIST/bin/$platform
	CGO_ENABLED=0 GOOS=$os GOARCH=$arch GOARM=$arm go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o "$bin/" ./cmd/loadstar ./cmd/loadstar-agent
	for program in loadstar loadstar-agent; do
		(cd tools && "$tools/sbom" -binary "$bin/$program$suffix" -version "$VERSION" -epoch "$EPOCH" -npm "$locks" \
			-out "$DIST/release/${program}_${plain}_$platform.cdx.json" -licenses "$bin/$program.third-party.txt")
	done
	folder=loadstar_${plain}_$platform
	stage=$tools/$folder
	mkdir "$stage"
	cp "$bin"/loadstar* "$stage"
	cp -r README.md CHANGELOG.md LICENSE docs plans deploy "$DIST/man" "$DIST/completions" "$stage"
	find "$stage" -exec touch -hd "@$EPOCH" {} +
	tar -C "$tools" --sort=name --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw -cf - "$folder" | gzip -9n >"$DIST/release/$folder.tar.gz"
	[ "$arch" = arm ] || python3 tools/wheel.py --binary "$bin/loadstar$suffix" --platform "$platform" --version "$VERSION" --out "$DIST/release" >/dev/null
	case $platform in
	linux-amd64) deb=amd64 ;;
	linux-arm64) deb=arm64 ;;
	linux-armv7) deb=armhf ;;
	*) continue ;;
	esac
	mkdir "$tools/stage-$platform"
	cp -r "$DIST/man" "$DIST/completions" "$bin"/*.third-party.txt "$tools/stage-$platform"
	(cd tools && "$tools/package" -root .. -bin "$bin" -stage "$tools/stage-$platform" -arch $deb -version "$VERSION" -epoch "$EPOCH" -out "$DIST/release")
done
for program in loadstar loadstar-agent; do
	"$tools/image" -bin "$DIST/bin" -program $program -version "$VERSION" -revision "$revision" -epoch "$EPOCH" -out "$DIST/release/${program}_${plain}_oci.tar"
done
(cd "$DIST/release" && sha256sum -- * >SHA256SUMS)
if [ -n "${SIGN_KEY:-}" ]; then
	tools/sign.sh "$DIST/release/SHA256SUMS" "$SIGN_KEY"
fi
ls -l "$DIST/release" | awk 'NR > 1 { printf "%8.2f MB  %s\n", $5 / 1e6, $9 }'
