package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
)

const (
	mostBytes    = 14.2e6 + 8<<16 // maximum size of the binary, with 8 pages of 64 kB: 2 for the pre-trained model, 4 for keepers and fetching weather, and 2 for the help that it shares with loadstar
	mostResident = 40 << 20
	emulator     = "qemu-arm-static"
)

// TestSmallDevice checks the agent's memory use on an emulated ARM v7. The agent joins a
// server, receives tasks, trains bose2023 and then dense, and sends the results. In the long
// form of the test, it hosts ten meters with a year of hourly readings each. The measured
// memory excludes the emulator's own memory.
func TestSmallDevice(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server and an emulated agent")
	}
	if _, err := exec.LookPath(emulator); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	build(t, in("agent"), ".", "GOOS=linux", "GOARCH=arm", "GOARM=7")
	build(t, in("loadstar"), "../loadstar")
	program, err := os.Stat(in("agent"))
	if err != nil || program.Size() > mostBytes {
		t.Fatalf("the binary has %.1f MB: %v", float64(program.Size())/1e6, err)
	}
	do := func(t *testing.T, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", filepath.Base(name), args, err, said.String())
		}
		return strings.TrimSpace(string(out))
	}
	meters, days := testkit.Pick("3", "10"), testkit.Pick("60", "365")
	do(t, in("loadstar"), "data", "generate", "--meters", meters, "--days", days, "-o", "data")
	do(t, in("loadstar"), "data", "prepare", "data", "-o", "data.prepared")

	address := testkit.AddressFor(t)
	url := "https://" + address
	start(t, dir, in("loadstar"), "serve", "--dir", "server", "--listen", address, "--watch", "", "--set", "agents.poll=200ms", "--log-level", "warn")
	operator := []string{"--server", url, "--operator", "server/operator"}
	testkit.Within(t, 30*time.Second, "the server", func() bool {
		_, err := os.Stat(in("server/operator/cert.pem"))
		c, dialled := net.Dial("tcp", address)
		if dialled == nil {
			c.Close()
		}
		return errors.Join(err, dialled) == nil
	})
	token := regexp.MustCompile(`ls1-\S+`).FindString(do(t, in("loadstar"), append([]string{"token", "create"}, operator...)...))
	do(t, emulator, in("agent"), "join", "-dir", "agent-data", url, token)
	agent := start(t, dir, emulator, in("agent"), "run", "-dir", "agent-data", "-policy", "trial", "-data", "data.prepared")
	t.Logf("binary %.1f MB", float64(program.Size())/1e6)
	finished := 0
	for _, x := range []struct{ name, plan string }{
		{"bose2023", "model: {name: bose2023}\npartition: head\n"},
		{"dense, an hour", "model: {name: dense}\n"},
		{"dense, a day", "model: {name: dense, targets: 24}\nclient: {moments: averaged}\n"},
	} {
		t.Run(x.name, func(t *testing.T) {
			plan := "name: small\nalgorithm: fedavg\nrounds: 2\n" + x.plan
			if err := os.WriteFile(in("plan.yaml"), []byte(plan), 0o600); err != nil {
				t.Fatal(err)
			}
			began, most, asked := time.Now(), int64(0), time.Now()
			do(t, in("loadstar"), append([]string{"run", "start", "plan.yaml", "--wait-for", meters}, operator...)...)
			finished++
			testkit.Within(t, 10*time.Minute, "two rounds on the device", func() bool {
				now, err := resident(agent.Pid)
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, now)
				if time.Since(asked) < time.Second { // the command itself costs more than the measurement
					return false
				}
				asked = time.Now()
				return strings.Count(do(t, in("loadstar"), append([]string{"run", "list"}, operator...)...), "finished") == finished
			})
			t.Logf("two rounds in %.1f s, peak resident memory %.1f MB", time.Since(began).Seconds(), float64(most)/(1<<20))
			if most > mostResident || most < 4<<20 {
				t.Errorf("%.1f MB resident, want at most %d", float64(most)/(1<<20), mostResident>>20)
			}
		})
	}
}

// TestSmallDeviceForecasts checks the memory of an emulated agent that makes forecasts every 15
// minutes with a model. The long form uses ten meters and a model that forecasts a whole day.
func TestSmallDeviceForecasts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an emulated agent")
	}
	if _, err := exec.LookPath(emulator); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	build(t, in("agent"), ".", "GOOS=linux", "GOARCH=arm", "GOARM=7")
	build(t, in("loadstar"), "../loadstar")
	do := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", filepath.Base(name), args, err, out)
		}
		return string(out)
	}
	meters := testkit.Pick(1, 10)
	begin := time.Now().AddDate(0, 0, -34).UTC().Format(time.DateOnly)
	do(in("loadstar"), "data", "generate", "--meters", strconv.Itoa(meters), "--days", "35", "--interval", "15m", "--start", begin, "-o", "data")
	do(in("loadstar"), "data", "prepare", "data", "-o", "site.prepared")
	address := testkit.AddressFor(t)
	for name, text := range map[string]string{
		"plan.yaml":  "name: small\nalgorithm: fedavg\nrounds: 8\nmodel: {name: dense, targets: " + testkit.Pick("24", "96") + "}\n",
		"agent.yaml": "site: {zone: America/Chicago, interval: 15m}\nmodel: run\nhistory: site.prepared\ninbox: inbox\nforecast: {drop: drop}\nhttp: {listen: \"" + address + "\"}\n",
	} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	do(in("loadstar"), "simulate", "plan.yaml", "--data", "site.prepared", "--out", "run", "--quiet")
	agent := start(t, dir, emulator, in("agent"), "run", "-config", "agent.yaml")
	most := int64(0)
	testkit.Within(t, 10*time.Minute, "forecasts of all meters", func() bool {
		now, err := resident(agent.Pid)
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, now)
		_, err = os.Stat(in("drop/latest.csv"))
		return err == nil
	})
	table, err := os.ReadFile(in("drop/latest.csv"))
	if err != nil || bytes.Count(table, []byte("\n")) != 1+meters*192 {
		t.Errorf("%d lines: %v", bytes.Count(table, []byte("\n")), err)
	}
	t.Logf("peak resident memory %.1f MB while models are compared for %d meters", float64(most)/(1<<20), meters)
	if most > mostResident || most < 4<<20 {
		t.Errorf("%.1f MB resident, want at most %d", float64(most)/(1<<20), mostResident>>20)
	}
	if status := do(emulator, in("agent"), "status", "-config", "agent.yaml"); strings.Count(status, "forecast from") != meters {
		t.Error(status)
	}
}

// TestSmallDeviceIssue measures the CPU time of forecasts for ten meters on the emulated
// device. It runs only in the long form of the tests.
func TestSmallDeviceIssue(t *testing.T) {
	if !testkit.Long() {
		t.Skip("takes a minute; agent/live has the same test without an emulator")
	}
	if _, err := exec.LookPath(emulator); err != nil {
		t.Skip(err)
	}
	to := filepath.Join(t.TempDir(), "live.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", to, "../../agent/live")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm", "GOARM=7", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), emulator, to, "-test.run", "TestIssueTime", "-test.v").CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

func build(t *testing.T, to, what string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, what)
	cmd.Env = append(os.Environ(), append(env, "CGO_ENABLED=0")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// start starts a program that runs until the test ends. If the test fails, it logs the
// program's output.
func start(t *testing.T, dir, name string, args ...string) *os.Process {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() // fails only if the process has ended
		cmd.Wait()         // returns the error of a killed process
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(name), said.String())
		}
	})
	return cmd.Process
}

// resident returns the resident memory of an emulated program. The emulator reserves a range of
// four gigabytes for the program, which starts at the first mapping of the program's file.
func resident(pid int) (bytes int64, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var base uint64
	within := false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if from, _, ok := strings.Cut(fields[0], "-"); ok && !strings.HasSuffix(fields[0], ":") {
			at, err := strconv.ParseUint(from, 16, 64)
			if err != nil {
				return 0, err
			}
			if base == 0 && strings.HasSuffix(lines.Text(), "/agent") {
				base = at
			}
			within = base > 0 && at-base < 1<<32
		} else if within && fields[0] == "Rss:" {
			kb, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, err
			}
			bytes += kb << 10
		}
	}
	return bytes, lines.Err()
}
