#!/usr/bin/env bash
# Trains plans/day-ahead.yaml on groups of clients, and scores what people do with forecasts:
# the energy of a day, the hourly sum of all clients, and the highest hour of a day. The last
# line has the errors relative to those of last week's loads. It fails if one is above its
# limit, or if P10 to P90 covers less than 77 or more than 84 % in a group.
# usage: uses.sh [short]     short: a few rounds on the sample, without limits
set -euo pipefail
cd "$(dirname "$0")/.."

# name, dataset, and the limits of energy, sum and peak
groups="sgsc sgsc-core19 0.80 0.80 0.78
ca resstock-ca-core42 0.75 0.74 0.76
vt resstock-vt-core42 0.50 0.38 0.70
hog hog-core42 0.50 0.51 0.53"
rounds=() out=runs/uses
if [ "${1:-}" = short ]; then
	groups="sample sample 9 9 9"
	rounds=(--rounds 15)
	out=$(mktemp -d)
	trap 'rm -rf "$out"' EXIT
fi
energy=() sum=() peak=() failed=0
while read -r name dataset most_energy most_sum most_peak; do
	data=datasets/$dataset
	test -d "$data" || data+=.yaml
	test -e "$out/$dataset/summary.json" ||
		bin/loadstar simulate plans/day-ahead.yaml --data "$data" --out "$out/$dataset" --quiet --baseline none "${rounds[@]}" >/dev/null
	scores=$(bin/loadstar backtest --model "$out/$dataset" --data "$data")
	echo "$scores"
	of() { # of QUANTITY LIMIT: prints the relative error, and complains if it or the coverage is out of range
		awk -v what="$1" -v most="$2" -v name="$name" '
			index($0, what) == 1 && match($0, /error [0-9.]+ times/) {
				error = substr($0, RSTART + 6, RLENGTH - 12) + 0
				match($0, /covers [0-9.]+/); covers = substr($0, RSTART + 7, RLENGTH - 7) + 0
				printf "%s %.3f", name, error
				if (error > most) { print name ": " what " has error " error ", at most " most > "/dev/stderr"; bad = 1 }
				if (most < 9 && (covers < 77 || covers > 84)) { print name ": " what " is covered in " covers " %" > "/dev/stderr"; bad = 1 }
				found = 1
			}
			END { exit bad || !found }' <<<"$scores"
	}
	score=$(of "energy of a day" "$most_energy") || failed=1
	energy+=("$score")
	score=$(of "hourly sum" "$most_sum") || failed=1
	sum+=("$score")
	score=$(of "highest step" "$most_peak") || failed=1
	peak+=("$score")
done <<<"$groups"
list() {
	local IFS=,
	echo "$*" | sed 's/,/, /g'
}
echo "uses energy $(list "${energy[@]}"); sum $(list "${sum[@]}"); peak $(list "${peak[@]}")"
exit $failed
