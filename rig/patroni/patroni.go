// Package patroni runs three machines with PostgreSQL under Patroni, as in production, and breaks
// them.
package patroni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"loadstar/internal/proc"
	"loadstar/internal/testkit/pgtest"
)

// Cluster is three machines, each with PostgreSQL, Patroni and etcd. A machine is a loopback
// address and a group of users. The group identifies the machine's processes, and is used to
// cut off its network. A Cluster needs root, and is not safe for concurrent use.
type Cluster struct {
	bin      string
	uid      uint32
	machines []*machine
	// asynchronous means that commits wait for no standby.
	asynchronous bool
}

type machine struct {
	name, ip, dir string
	group         uint32
	etcd, patroni *proc.Child
}

// Options determine how machines replicate.
type Options struct {
	// Asynchronous means that commits wait for no standby.
	Asynchronous bool
	// V3 selects the newer interface of etcd, with which Patroni before 3.0.3 loses commits.
	V3 bool
}

const (
	count = 3
	// ttl is the time in seconds after which another machine takes over from a machine that
	// does not respond.
	ttl = 20
)

// Available returns an error if machines cannot be started here.
func Available() error {
	for _, name := range []string{"patroni", "etcd", "etcdctl", "iptables"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%s is not installed", name)
		}
	}
	if os.Getuid() != 0 {
		return errors.New("cutting machines off needs root")
	}
	return nil
}

// Start creates machines in folders below dir, which other users must be able to enter. It
// returns when a primary has all standbys.
func Start(dir string, o Options) (*Cluster, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	bin, as, err := pgtest.Installed()
	if err != nil {
		return nil, err
	}
	if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
		return nil, err
	}
	c := &Cluster{bin: bin, uid: as.Uid, asynchronous: o.Asynchronous}
	network, group := fmt.Sprintf("127.%d.%d.", 64+rand.IntN(128), rand.IntN(256)), 100_000+10*rand.Uint32N(30_000)
	for i := range count {
		name := "n" + strconv.Itoa(i+1)
		c.machines = append(c.machines, &machine{name: name, ip: network + strconv.Itoa(i+1), dir: filepath.Join(dir, name), group: group + uint32(i)})
	}
	for _, m := range c.machines {
		if err := c.create(m, o); err != nil {
			return nil, err
		}
	}
	for _, m := range c.machines {
		if err := c.Repair(m.name); err != nil {
			return nil, errors.Join(err, c.Crash())
		}
	}
	if err := c.Whole(context.Background(), 3*time.Minute); err != nil {
		return nil, errors.Join(err, c.Crash())
	}
	return c, nil
}

// addresses returns the addresses of all machines with a port.
func (c *Cluster) addresses(format string) string {
	var all []string
	for _, m := range c.machines {
		all = append(all, fmt.Sprintf(format, m.name, m.ip))
	}
	return strings.Join(all, ",")
}

// create writes the configuration of a machine.
func (c *Cluster) create(m *machine, o Options) error {
	type object = map[string]any
	store := "etcd"
	if o.V3 {
		store = "etcd3"
	}
	text, err := json.MarshalIndent(object{ // Patroni reads YAML, and JSON is YAML
		"scope": "loadstar", "name": m.name,
		"restapi": object{"listen": m.ip + ":8008", "connect_address": m.ip + ":8008"},
		store:     object{"hosts": c.addresses("%[2]s:2379")},
		"bootstrap": object{
			"dcs": object{
				"ttl": ttl, "loop_wait": ttl / 4, "retry_timeout": ttl / 4,
				// Without this setting, a primary that crashed would recover before another
				// machine takes over.
				"master_start_timeout": 0, "maximum_lag_on_failover": 16 << 20, "synchronous_mode": !o.Asynchronous, "check_timeline": true,
				"postgresql": object{"use_pg_rewind": true, "use_slots": true, "parameters": object{
					"max_connections": 150, "wal_keep_size": "256MB", "max_slot_wal_keep_size": "2GB", "wal_log_hints": "on", "shared_buffers": "32MB",
					"wal_sender_timeout": "10s", "wal_receiver_timeout": "10s", "wal_receiver_status_interval": "1s",
				}},
			},
			"initdb": []any{object{"encoding": "UTF8"}, object{"locale": "C.UTF-8"}, "data-checksums"},
			"pg_hba": []string{"local all all trust", "host all all 127.0.0.0/8 trust", "host replication all 127.0.0.0/8 trust"},
		},
		"postgresql": object{
			"listen": m.ip + ":5432", "connect_address": m.ip + ":5432", "data_dir": filepath.Join(m.dir, "data"), "bin_dir": c.bin, "pgpass": filepath.Join(m.dir, "pgpass"),
			"use_unix_socket": true, "remove_data_directory_on_rewind_failure": true, "remove_data_directory_on_diverged_timelines": true,
			"authentication": object{"superuser": object{"username": "postgres"}, "replication": object{"username": "replicator"}, "rewind": object{"username": "rewind"}},
			"parameters":     object{"unix_socket_directories": m.dir}, "basebackup": []any{object{"checkpoint": "fast"}},
		},
	}, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(m.dir, "etcd"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.dir, "patroni.yml"), text, 0o644); err != nil {
		return err
	}
	return errors.Join(os.Chown(m.dir, int(c.uid), int(m.group)), os.Chown(filepath.Join(m.dir, "etcd"), int(c.uid), int(m.group)))
}

// launch starts a program of a machine. The program ends with this process.
func (c *Cluster) launch(m *machine, name string, args ...string) (*proc.Child, error) {
	out, err := os.OpenFile(filepath.Join(m.dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = m.dir, out, out
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "HOME=" + m.dir, "PYTHONUNBUFFERED=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.uid, Gid: m.group}}
	return proc.Start(cmd, syscall.SIGTERM) // Patroni then stops PostgreSQL
}

func over(p *proc.Child) bool {
	if p == nil {
		return true
	}
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

func (c *Cluster) named(name string) *machine {
	for _, m := range c.machines {
		if m.name == name {
			return m
		}
	}
	panic("patroni: no machine " + name)
}

// Repair connects a machine to the network, continues its processes and starts those that ended.
func (c *Cluster) Repair(name string) (err error) {
	m := c.named(name)
	c.connect(m)
	if err := c.signal(m, "", syscall.SIGCONT); err != nil {
		return err
	}
	if over(m.etcd) {
		if m.etcd, err = c.launch(m, "etcd", "--name", m.name, "--data-dir", filepath.Join(m.dir, "etcd"), "--initial-cluster", c.addresses("%s=http://%s:2380"),
			"--listen-peer-urls", "http://"+m.ip+":2380", "--initial-advertise-peer-urls", "http://"+m.ip+":2380",
			"--listen-client-urls", "http://"+m.ip+":2379", "--advertise-client-urls", "http://"+m.ip+":2379", "--enable-v2=true"); err != nil {
			return err
		}
	}
	if over(m.patroni) {
		m.patroni, err = c.launch(m, "patroni", filepath.Join(m.dir, "patroni.yml"))
	}
	return err
}

// processes returns the processes of a machine, or only those with the given name if it is not
// empty.
func (m *machine) processes(name string) ([]int, error) {
	return proc.Find(func(pid int) bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return false // the process has ended
		}
		has := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			has[key] = strings.TrimSpace(value)
		}
		group, _, _ := strings.Cut(has["Gid"], "\t")
		return group == strconv.FormatUint(uint64(m.group), 10) && !strings.HasPrefix(has["State"], "Z") && (name == "" || has["Name"] == name)
	})
}

// signal sends a signal to a machine's processes with the given name, or to all if the name is
// empty. SIGKILL is repeated until no process is left.
func (c *Cluster) signal(m *machine, name string, s syscall.Signal) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		all, err := m.processes(name)
		if err != nil {
			return err
		}
		for _, pid := range all {
			if err := syscall.Kill(pid, s); err != nil && err != syscall.ESRCH {
				return err
			}
		}
		if len(all) == 0 || s != syscall.SIGKILL {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("patroni: %d processes of %s survived the kill", len(all), m.name)
		}
	}
}

// KillPostgres kills all processes of PostgreSQL on a machine.
func (c *Cluster) KillPostgres(name string) error {
	return c.signal(c.named(name), "postgres", syscall.SIGKILL)
}

// KillPatroni kills Patroni on a machine and leaves PostgreSQL running.
func (c *Cluster) KillPatroni(name string) error {
	return c.signal(c.named(name), "patroni", syscall.SIGKILL)
}

// KillEtcd kills etcd on a machine.
func (c *Cluster) KillEtcd(name string) error {
	return c.signal(c.named(name), "etcd", syscall.SIGKILL)
}

// Kill kills all processes of a machine.
func (c *Cluster) Kill(name string) error { return c.signal(c.named(name), "", syscall.SIGKILL) }

// Pause stops all processes of a machine until it is repaired.
func (c *Cluster) Pause(name string) error { return c.signal(c.named(name), "", syscall.SIGSTOP) }

// rules returns the firewall rules that cut a machine off.
func (m *machine) rules() [][]string {
	group := strconv.FormatUint(uint64(m.group), 10)
	return [][]string{
		{"OUTPUT", "-o", "lo", "-m", "owner", "--gid-owner", group, "!", "-d", m.ip, "-j", "DROP"},
		{"OUTPUT", "-o", "lo", "-d", m.ip, "-m", "owner", "!", "--gid-owner", group, "-j", "DROP"},
	}
}

// Cut cuts a machine off from all others and from this process until it is repaired.
func (c *Cluster) Cut(name string) error {
	for _, rule := range c.named(name).rules() {
		if out, err := exec.Command("iptables", append([]string{"-w", "-A"}, rule...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("patroni: iptables: %w\n%s", err, out)
		}
	}
	return nil
}

func (c *Cluster) connect(m *machine) {
	for _, rule := range m.rules() {
		for exec.Command("iptables", append([]string{"-w", "-D"}, rule...)...).Run() == nil {
		}
	}
}

// Primary returns the name of the primary according to Patroni, or "" if there is none.
func (c *Cluster) Primary(ctx context.Context) string {
	for _, m := range c.machines {
		if answers(ctx, "http://"+m.ip+":8008/primary") {
			return m.name
		}
	}
	return ""
}

// EtcdLeader returns the name of the machine whose etcd leads the others, or "".
func (c *Cluster) EtcdLeader(ctx context.Context) string {
	for _, m := range c.machines {
		cmd := exec.CommandContext(ctx, "etcdctl", "--endpoints", m.ip+":2379", "--command-timeout", "2s", "endpoint", "status", "-w", "json")
		cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
		text, err := cmd.Output()
		var is []struct {
			Status struct {
				Header struct {
					Member uint64 `json:"member_id"`
				} `json:"header"`
				Leader uint64 `json:"leader"`
			}
		}
		if err == nil && json.Unmarshal(text, &is) == nil && len(is) == 1 && is[0].Status.Leader != 0 && is[0].Status.Leader == is[0].Status.Header.Member {
			return m.name
		}
	}
	return ""
}

func answers(ctx context.Context, at string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return false
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return false
	}
	_ = r.Body.Close() // only the status matters
	return r.StatusCode == http.StatusOK
}

// Whole waits until a primary has all standbys.
func (c *Cluster) Whole(ctx context.Context, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		if name := c.Primary(ctx); name != "" {
			out, err := exec.CommandContext(ctx, filepath.Join(c.bin, "psql"), "-XAt", "-h", c.named(name).ip, "-U", "postgres", "-c",
				// A machine that is still copying the database also streams, but under another
				// name.
				"SELECT count(*), count(*) FILTER (WHERE sync_state = 'sync') FROM pg_stat_replication WHERE state = 'streaming' AND application_name LIKE 'n_'").Output()
			all, synchronous, _ := strings.Cut(string(bytes.TrimSpace(out)), "|")
			if err == nil && all == strconv.Itoa(len(c.machines)-1) && (synchronous != "0" || c.asynchronous) {
				return nil
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("patroni: no primary with standbys after %s\n%s", limit, c.Log(2000))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// URL returns the address of a database on all machines.
func (c *Cluster) URL(database string) string {
	return "postgres://postgres@" + c.addresses("%[2]s:5432") + "/" + database + "?sslmode=disable"
}

// Create creates an empty database, and returns when all machines have it.
func (c *Cluster) Create(database string) error {
	name := c.Primary(context.Background())
	if name == "" {
		return errors.New("patroni: no primary")
	}
	if out, err := exec.Command(filepath.Join(c.bin, "createdb"), "-h", c.named(name).ip, "-U", "postgres", database).CombinedOutput(); err != nil {
		return fmt.Errorf("patroni: createdb: %w\n%s", err, out)
	}
	for _, m := range c.machines {
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			out, err := exec.Command(filepath.Join(c.bin, "psql"), "-Xqc", "SELECT 1", "-h", m.ip, "-U", "postgres", database).CombinedOutput()
			if err == nil {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("patroni: %s does not have the database: %w\n%s", m.name, err, out)
			}
		}
	}
	return nil
}

// Log returns the last n bytes of each Patroni's log.
func (c *Cluster) Log(n int) string {
	var b strings.Builder
	for _, m := range c.machines {
		text, _ := os.ReadFile(filepath.Join(m.dir, "patroni.log"))
		fmt.Fprintf(&b, "--- %s %s\n%s\n", m.name, net.JoinHostPort(m.ip, "5432"), text[max(0, len(text)-n):])
	}
	return b.String()
}

// Crash kills all machines.
func (c *Cluster) Crash() error {
	var all []error
	for _, m := range c.machines {
		c.connect(m)
		all = append(all, c.Kill(m.name))
	}
	return errors.Join(all...)
}
