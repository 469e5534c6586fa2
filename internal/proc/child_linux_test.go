package proc

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain also contains the code of the parent process that TestDeath starts and kills.
func TestMain(m *testing.M) {
	if os.Getenv("PROC_TEST_PARENT") != "" {
		c, err := Start(exec.Command("sleep", "60"), syscall.SIGKILL)
		if err != nil {
			panic(err)
		}
		os.Stdout.WriteString(strconv.Itoa(c.Pid()) + "\n") // the test fails if it cannot read the ID
		<-c.Done()
	}
	os.Exit(m.Run())
}

func TestChild(t *testing.T) {
	if _, err := Start(exec.Command("/no/such/program"), syscall.SIGKILL); err == nil {
		t.Error("a program that does not exist was started")
	}
	c, err := Start(exec.Command("sh", "-c", "exit 3"), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if code := c.State().ExitCode(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	if err := c.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("a signal to a process that has ended: %v", err)
	}

	if c, err = Start(exec.Command("sleep", "60"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if u, err := UsageOf(c.Pid()); err != nil || u.RSS <= 0 || u.Peak < u.RSS {
		t.Errorf("usage %+v, %v", u, err)
	}
	if err := c.Stop(syscall.SIGTERM, time.Minute); err != nil {
		t.Error(err)
	}

	// A child that ignores the signal is killed.
	cmd := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	ready := make(signalWriter)
	cmd.Stdout = ready
	if c, err = Start(cmd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ready
	if err := c.Stop(syscall.SIGTERM, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "did not end within 50ms") {
		t.Error(err)
	}
	if c.State().Success() {
		t.Error("the child was not killed")
	}
}

type signalWriter chan struct{}

func (w signalWriter) Write(b []byte) (int, error) {
	close(w)
	return len(b), nil
}

// TestDeath kills a parent and checks that its child dies with it.
func TestDeath(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "PROC_TEST_PARENT=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	parent.Wait() // the parent was killed
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(end) {
			syscall.Kill(pid, syscall.SIGKILL) // the test has failed
			t.Fatal("the child outlived its parent")
		}
	}
}

func TestPeakMemory(t *testing.T) {
	before := PeakMemory()
	b := make([]byte, 64<<20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	if after := PeakMemory(); before <= 0 || after < before || after < 64<<20 {
		t.Errorf("the peak is %d bytes, and %d after using another 64 MB", before, after)
	}
	if b[4096] != 1 {
		t.Error("not written")
	}
}
