#!/usr/bin/env bash
# Repeats tests while two spinning processes keep the machine busy, to find tests that
# depend on timing. make repeat calls it with
#   RUNS     number of runs of the whole suite
#   REPEATS  number of runs of every test in tools/repeat.txt
#   ONLY     repeat only this package, such as server/bus
set -euo pipefail
cd "$(dirname "$0")/.."
RUNS=${RUNS:-1} REPEATS=${REPEATS:-100} ONLY=${ONLY:-}

dir=$(mktemp -d)
spinners=()
finish() {
	for pid in "${spinners[@]}"; do kill "$pid" 2>/dev/null || true; done
	rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Compile first, since it would take long on the busy machine.
while read -r package _; do
	case $package in '' | '#'*) continue ;; esac
	[ -z "$ONLY" ] || [ "$package" = "$ONLY" ] || continue
	binary=$dir/${package//\//_}.test
	[ -e "$binary" ] || (cd "$package" && go test -c -o "$binary" .)
done <tools/repeat.txt
# suite FLAG... tests the suite, or the package that was chosen.
suite() {
	if [ -n "$ONLY" ]; then
		(cd "$ONLY" && go test "$@" .)
	else
		go test "$@" ./... && go -C rig test "$@" ./...
	fi
}
suite -run '^$' >/dev/null

for _ in 1 2; do
	(while :; do :; done) &
	spinners+=($!)
done

summary=$dir/summary
failed=0
# record PACKAGE TESTS RUNS FAILURES SECONDS LOG
record() {
	printf '%s\t%s\t%s\t%s\t%s\n' "${@:1:5}" >>"$summary"
	echo "$1 $2: $3 runs, $4 failures, $5 s"
	if [ "$4" -gt 0 ]; then
		failed=1
		cat "$6"
	fi
}

for ((run = 1; run <= RUNS; run++)); do
	log=$dir/suite-$run.log
	begin=$SECONDS code=0
	suite -count=1 -timeout 60m >"$log" 2>&1 || code=$?
	failures=$(grep -c '^--- FAIL\|^FAIL.*\[' "$log" || true)
	[ "$code" = 0 ] || [ "$failures" -gt 0 ] || failures=1
	record "${ONLY:-all}" "run $run of $RUNS" 1 "$failures" $((SECONDS - begin)) "$log"
done

while read -r package tests most; do
	case $package in '' | '#'*) continue ;; esac
	[ -z "$ONLY" ] || [ "$package" = "$ONLY" ] || continue
	count=$REPEATS
	[ -z "$most" ] || [ "$count" -le "$most" ] || count=$most
	log=$dir/log
	begin=$SECONDS code=0
	(cd "$package" && "$dir/${package//\//_}.test" -test.run "$tests" -test.count "$count" -test.timeout 2h) >"$log" 2>&1 || code=$?
	failures=$(grep -c '^--- FAIL' "$log" || true)
	[ "$code" = 0 ] || [ "$failures" -gt 0 ] || failures=1
	record "$package" "$tests" "$count" "$failures" $((SECONDS - begin)) "$log"
done <tools/repeat.txt

echo
{
	printf 'PACKAGE\tTESTS\tRUNS\tFAILURES\tSECONDS\n'
	cat "$summary"
} | awk -F '\t' '{ printf "%-22s %-40s %6s %9s %8s\n", $1, $2, $3, $4, $5 }'
exit $failed
