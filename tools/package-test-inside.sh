#!/usr/bin/env bash
# The part of package-test.sh that runs in namespaces of its own.
set -euo pipefail
work=$1 plan=$2 root=$1/root
ip link set lo up
mount --make-rprivate /
mount -t proc proc /proc
echo '127.0.0.1 localhost' >"$root/etc/hosts" # a minimal root has none
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount --rbind /dev "$root/dev"
fail() { echo "FAILED: $*"; cat "$work"/*.log 2>/dev/null | tail -40; exit 1; }
in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"; }
as() { # as USER COMMAND...: run a command in the root as a user without any right
	in_root setpriv --reuid="$1" --regid="$1" --init-groups --no-new-privs --bounding-set=-all --inh-caps=-all "${@:2}"
}
until_true() { # until_true WHAT COMMAND...
	local i
	for i in $(seq 1200); do "${@:2}" && return 0; sleep 0.1; done
	fail "$1: not within two minutes"
}
unit() { sed -n "s/^$2=//p" "$root/usr/lib/systemd/system/$1.service"; }

# start SERVICE runs ExecStart of a unit as its User, as systemd would, and waits for READY=1.
start() {
	local service=$1 options="" user command
	user=$(unit "$service" User) command=$(unit "$service" ExecStart)
	[ -n "$user" ] && [ "$user" != root ] || fail "$service has no user of its own"
	[ "$(unit "$service" Type)" = notify ] || fail "$service is not of type notify"
	if [ -n "$(unit "$service" EnvironmentFile)" ]; then
		options=$(. "$root/etc/default/loadstar" && echo "$LOADSTAR_OPTIONS")
	fi
	rm -f "$root/run/$service.notify" "$work/$service.said"
	python3 - "$root/run/$service.notify" "$work/$service.said" <<'PYTHON' &
import os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
with open(sys.argv[2], "w") as out:
    while True:
        print(s.recv(4096).decode(), file=out, flush=True)
PYTHON
	until_true "the socket" test -S "$root/run/$service.notify"
	as "$user" env NOTIFY_SOCKET="/run/$service.notify" LOADSTAR_OPTIONS="$options" sh -c "cd $(unit "$service" WorkingDirectory) && exec $command" >"$work/$service.log" 2>&1 &
	pids[$service]=$!
	until_true "READY=1 of $service" sh -c "grep -qs READY=1 $work/$service.said || ! kill -0 ${pids[$service]} 2>/dev/null"
	grep -qs READY=1 "$work/$service.said" || fail "$service has ended"
	[ "$(ps -o user= -p "$(pgrep -n -f "^$(echo "$command" | cut -d' ' -f1,2)")" | head -1)" != root ] || fail "$service runs as root"
	echo "   $service runs as $user and is ready"
}
declare -A pids
stop() {
	pkill -TERM -f "^$(unit "$1" ExecStart | cut -d' ' -f1,2)"
	wait "${pids[$1]}" || fail "$1 ended with code $?"
}
operator() { as loadstar loadstar "$@" --server https://localhost:7443 --operator /var/lib/loadstar/operator; }

echo "-- install"
in_root apt-get install -y -q --no-install-recommends /packages/loadstar_0.0.1_amd64.deb /packages/loadstar-agent_0.0.1_amd64.deb >"$work/apt.log" 2>&1 || fail "apt install"
for path in /var/lib/loadstar /var/lib/loadstar-agent; do
	[ "$(in_root stat -c '%U %a' $path)" = "$(basename $path) 750" ] || fail "$path: $(in_root stat -c '%U %a' $path)"
done
[ "$(in_root stat -c '%U %G %a' /etc/default/loadstar)" = "root loadstar 640" ] || fail "/etc/default/loadstar: $(in_root stat -c '%U %G %a' /etc/default/loadstar)"
[ -z "$(pgrep -f /usr/bin/loadstar)" ] || fail "a service was started on install"
[ ! -e "$root/etc/systemd/system/multi-user.target.wants/loadstar.service" ] || fail "a service was enabled on install"
if command -v systemd-analyze >/dev/null; then
	mkdir "$work/units"
	for unit in loadstar loadstar-agent loadstar-backup; do
		sed "s|^ExecStart=|ExecStart=$root|" "$root/usr/lib/systemd/system/$unit.service" >"$work/units/$unit.service"
	done
	cp "$root/usr/lib/systemd/system/loadstar-backup.timer" "$work/units"
	systemd-analyze verify --man=no "$work"/units/*.service "$work"/units/*.timer >"$work/verify.log" 2>&1 || fail "systemd-analyze verify"
	! grep -E '^(/.*)?loadstar[^ ]*\.service' "$work/verify.log" || fail "systemd-analyze verify"
fi
in_root sh -c 'zcat /usr/share/man/man1/loadstar-serve.1.gz /usr/share/man/man1/loadstar-agent.1.gz' | grep '^\.TH' >/dev/null || fail "man pages"
in_root bash -n /usr/share/bash-completion/completions/loadstar || fail "completion"

echo "-- server, agent, a run"
start loadstar
as loadstar-agent sh -c 'cd /var/lib/loadstar-agent && loadstar data generate --meters 2 --days 60 -o data && loadstar data prepare data -o site.prepared' >"$work/data.log" 2>&1 || fail "data"
token=$(operator token create | grep -o 'ls1-[^ ]*' | head -1)
as loadstar-agent loadstar-agent join -dir /var/lib/loadstar-agent https://localhost:7443 "$token" >"$work/join.log" 2>&1 || fail "join"
sed -i 's|zone: Etc/UTC.*|zone: America/Chicago|; $a history: /var/lib/loadstar-agent/site.prepared' "$root/etc/loadstar/agent.yaml"
# Two clients with 60 days are less than an agent demands by default.
echo 'policy: {least_client_examples: 0, whole_blocks: false, least_cohort: 1, least_merge: 1, least_fleet: 1}' >>"$root/etc/loadstar/agent.yaml"
as loadstar-agent loadstar-agent check -config /etc/loadstar/agent.yaml >"$work/check.log" 2>&1 || fail "check"
start loadstar-agent
cp "$plan" "$root/packages/plan.yaml"
operator run start /packages/plan.yaml --rounds 2 --wait-for 2 >"$work/run.log" 2>&1 || fail "run start"
finished() { operator run list 2>/dev/null | grep -q finished; }
until_true "a run of two rounds" finished
operator run list

echo "-- backup of the running server"
for i in 1 2 3; do
	in_root install -d -m 0750 -o loadstar -g loadstar /var/lib/loadstar-backups # as StateDirectory does
	as loadstar env LOADSTAR_BACKUP_OPTIONS="--keep 2" sh -c "cd /var/lib/loadstar && exec $(unit loadstar-backup ExecStart)" >"$work/backup.log" 2>&1 || fail "backup"
	sleep 1
done
[ "$(ls "$root"/var/lib/loadstar-backups/loadstar-*.tar | wc -l)" = 2 ] || fail "backups: $(ls "$root/var/lib/loadstar-backups")"
as loadstar sh -c 'loadstar restore "$(ls /var/lib/loadstar-backups/loadstar-*.tar | tail -1)" --dir /tmp/restored --revocations /var/lib/loadstar-backups/revocations.jsonl' >"$work/restore.log" 2>&1 || fail "restore"
as loadstar loadstar doctor --dir /var/lib/loadstar --server https://localhost:7443 --operator /var/lib/loadstar/operator >"$work/doctor.log" 2>&1 || fail "doctor: $(cat "$work/doctor.log")"
rm -rf "$root/tmp/restored"

echo "-- upgrade"
stop loadstar-agent
stop loadstar
before=$(cd "$root/var/lib" && find loadstar loadstar-agent -type f | sort | xargs sha256sum | sha256sum)
settings=$(sha256sum <"$root/etc/loadstar/agent.yaml")
in_root apt-get install -y -q --no-install-recommends /packages/loadstar_0.0.2_amd64.deb /packages/loadstar-agent_0.0.2_amd64.deb >"$work/apt.log" 2>&1 || fail "upgrade"
[ "$(in_root dpkg-query -W -f '${Version}' loadstar)" = 0.0.2 ] || fail "the upgrade did not happen"
[ "$before" = "$(cd "$root/var/lib" && find loadstar loadstar-agent -type f | sort | xargs sha256sum | sha256sum)" ] || fail "the upgrade changed data"
[ "$settings" = "$(sha256sum <"$root/etc/loadstar/agent.yaml")" ] || fail "the upgrade changed settings"
start loadstar
start loadstar-agent
finished || fail "the run is gone"
operator run start /packages/plan.yaml --rounds 1 --wait-for 2 >"$work/run.log" 2>&1 || fail "run start after the upgrade"
twice() { [ "$(operator run list 2>/dev/null | grep -c finished)" = 2 ]; }
until_true "a run after the upgrade, with the identity from before" twice
stop loadstar-agent
stop loadstar

echo "-- remove, purge"
in_root apt-get remove -y -q loadstar loadstar-agent >"$work/apt.log" 2>&1 || fail "remove"
[ ! -e "$root/usr/bin/loadstar" ] && [ ! -e "$root/usr/bin/loadstar-agent" ] || fail "binaries are left"
[ -e "$root/var/lib/loadstar/pki" ] && [ -s "$root/var/lib/loadstar-agent/readings.db" ] || fail "removal took data"
[ -e "$root/etc/loadstar/agent.yaml" ] || fail "removal took settings"
in_root apt-get purge -y -q loadstar loadstar-agent >"$work/apt.log" 2>&1 || fail "purge"
[ ! -e "$root/etc/loadstar/agent.yaml" ] && [ ! -e "$root/etc/default/loadstar" ] || fail "purge left settings"
[ -e "$root/var/lib/loadstar/pki" ] && [ -s "$root/var/lib/loadstar-agent/readings.db" ] || fail "purge took data"

echo "-- image"
if [ -d /sys/fs/cgroup/unified ]; then
	mount -t cgroup2 cgroup2 /sys/fs/cgroup # crun refuses a machine that has both versions, even if it uses neither
fi
crun=(crun --root "$work/crun" --cgroup-manager=disabled)
(cd "$work/version" && "${crun[@]}" run version) >"$work/image.log" 2>&1 || fail "the image does not run"
grep -q v0.0.2 "$work/image.log" || fail "wrong version in the image"
(cd "$work/bundle" && exec "${crun[@]}" run server) >"$work/image.log" 2>&1 &
container=$!
healthy() { python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:7444/readyz", timeout=5)' 2>/dev/null || ! kill -0 $container 2>/dev/null; }
until_true "the server in the image" healthy
kill -0 $container 2>/dev/null || fail "the server in the image has ended"
[ "$(stat -c %u "$work/data/pki")" = 65532 ] || fail "the image does not run as user 65532"
"${crun[@]}" kill server TERM
wait $container || fail "the container ended with code $?"
echo "all package tests passed"
