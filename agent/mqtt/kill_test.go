package mqtt

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"loadstar/agent/readings"
	"loadstar/internal/proc"
	"loadstar/internal/testkit"
	"loadstar/series/store"
)

// TestMain runs the agent's side of the connection for tests that kill this process, if the
// environment requests it.
func TestMain(m *testing.M) {
	if path := os.Getenv("LOADSTAR_MQTT_STORE"); path != "" {
		fmt.Fprintln(os.Stderr, agentProcess(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// agentProcess stores the readings of a topic until it is killed.
func agentProcess(path string) error {
	c := Config{
		Broker: os.Getenv("LOADSTAR_MQTT_BROKER"), User: os.Getenv("LOADSTAR_MQTT_USER"), PasswordFile: os.Getenv("LOADSTAR_MQTT_PASSWORD"),
		CAFile: os.Getenv("LOADSTAR_MQTT_CA"), ServerName: os.Getenv("LOADSTAR_MQTT_NAME"),
		Agent: "gw", Sources: []Source{meter}, retry: 200 * time.Millisecond, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	s, intake, err := realIntake(path)
	if err != nil {
		return err
	}
	client, err := New(c, intake, noForecasts{})
	if err != nil {
		return err
	}
	go func() {
		for last := uint64(0); os.Getenv("LOADSTAR_MQTT_COUNT") != ""; time.Sleep(time.Second) {
			n := client.Status().Messages[Taken]
			fmt.Fprintf(os.Stderr, "taken %d, %d in the last second\n", n, n-last)
			last = n
		}
	}()
	go func() { _ = client.Run(context.Background()) }()
	err = intake.Run(context.Background())
	return fmt.Errorf("%v, %v", err, s.Close())
}

// quarter is the interval of the stored readings.
const quarter = 15 * time.Minute

func realIntake(path string) (*store.Store, *readings.Intake, error) {
	s, err := store.Open(path, store.Config{Interval: quarter, Clock: time.UTC})
	if err != nil {
		return nil, nil, err
	}
	intake, err := readings.NewIntake(readings.Config{
		Store: s, Interval: quarter, Clients: map[string]readings.Client{"a": {Limit: 100}}, Flush: 200 * time.Millisecond,
	})
	return s, intake, err
}

// TestAgentKilled kills the agent's process while a meter publishes a counter every minute for
// two days. The stored readings must equal those of an agent that was not killed.
func TestAgentKilled(t *testing.T) {
	m := newMosquitto(t, true)
	begin := time.Now().Add(-47 * time.Hour).Truncate(quarter)
	counter := 1000.0
	values := []float64{counter}
	for range 46 * 60 {
		counter += 0.01 + 0.001*float64(rand.IntN(50)) // kWh per minute
		values = append(values, math.Round(counter*1000)/1000)
	}
	message := func(i int) (payload, line string) {
		return fmt.Sprintf(`{"e":%.3f,"t":%d}`, values[i], begin.Unix()+60*int64(i)), ""
	}
	path := filepath.Join(t.TempDir(), "readings.db")
	launch := func() *proc.Child {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "LOADSTAR_MQTT_STORE="+path, "LOADSTAR_MQTT_BROKER="+m.config.Broker, "LOADSTAR_MQTT_USER="+m.config.User,
			"LOADSTAR_MQTT_PASSWORD="+m.config.PasswordFile, "LOADSTAR_MQTT_CA="+m.config.CAFile, "LOADSTAR_MQTT_NAME="+m.config.ServerName)
		if testing.Verbose() {
			cmd.Stderr = os.Stderr
		}
		child, err := proc.Start(cmd, syscall.SIGKILL)
		if err != nil {
			t.Fatal(err)
		}
		return child
	}
	child := launch()
	// The session exists once the agent has subscribed. Messages that are published before
	// that are lost.
	testkit.Eventually(t, "the subscription", func() bool { return strings.Contains(m.log(), "gw 1 "+meterTopic) })
	stop := sender(t, m.config, message, len(values), testkit.Pick(500*time.Microsecond, 3*time.Millisecond))
	kills := testkit.Pick(3, 40)
	for range kills {
		time.Sleep(time.Duration(50+rand.IntN(250)) * time.Millisecond)
		if err := child.Kill(); err != nil {
			t.Fatal(err)
		}
		child = launch()
	}
	sent := stop()

	// Store the same messages without a broker.
	reference, intake, err := realIntake(filepath.Join(t.TempDir(), "reference.db"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range sent {
		intake.Add([]readings.Sample{{Client: "a", At: begin.Add(time.Duration(i) * time.Minute), Value: values[i], Kind: readings.Counter}}, func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := intake.Run(ctx); err != nil { // stores the added samples
		t.Fatal(err)
	}
	// Steps after the last message may or may not be missing yet.
	from, to := begin.Unix(), begin.Add(time.Duration(sent-1)*time.Minute).Truncate(quarter).Unix()
	want, quality, err := reference.Values("a", from, to)
	if err != nil || len(want) < 4 || slices.ContainsFunc(quality, func(q store.Quality) bool { return q != store.OK }) {
		t.Fatalf("reference of %d messages: %v %v %v", sent, want, quality, err)
	}
	defer func() { _ = reference.Close() }()

	// Wait until the broker has no more messages for the agent.
	done := fmt.Sprintf("%d messages", sent)
	testkit.Eventually(t, done, func() bool {
		time.Sleep(500 * time.Millisecond)
		if err := child.Kill(); err != nil { // a running child would lock the store
			t.Fatal(err)
		}
		s, _, err := realIntake(path)
		if err != nil {
			t.Fatal(err)
		}
		got, quality, err := s.Values("a", from, to)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err == nil && slices.Equal(got, want) && !slices.ContainsFunc(quality, func(q store.Quality) bool { return q != store.OK }) {
			return true
		}
		child = launch()
		return false
	})
	t.Logf("%d messages, %d steps, %d kills", sent, len(want), kills)
}
