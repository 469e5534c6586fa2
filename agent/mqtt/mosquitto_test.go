package mqtt

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"loadstar/internal/proc"
	"loadstar/internal/testkit"
)

// mosquitto is a Mosquitto broker in a separate process.
type mosquitto struct {
	dir     string
	address string
	path    string
	text    string // text of the configuration
	child   *proc.Child
	config  Config
}

// newMosquitto starts a broker that keeps its messages across restarts. If secure is set, it
// requires TLS and a password. The given lines are added to its configuration.
func newMosquitto(t testing.TB, secure bool, lines ...string) *mosquitto {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a broker")
	}
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		path = "/usr/sbin/mosquitto" // often not on the PATH of users
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("mosquitto is missing; install it")
		}
		t.Skip("mosquitto is missing")
	}
	m := &mosquitto{dir: t.TempDir(), path: path, address: testkit.AddressFor(t)}
	_, port, _ := net.SplitHostPort(m.address)
	if err := os.Chmod(m.dir, 0o777); err != nil { // Mosquitto drops root privileges
		t.Fatal(err)
	}
	text := []string{
		"listener " + port + " 127.0.0.1", "persistence true", "persistence_location " + m.dir + "/",
		"persistent_client_expiration 1d", "max_queued_messages 0", "log_type all",
	}
	m.config = Config{Broker: "mqtt://" + m.address, Agent: "gw"}
	if os.Getuid() == 0 {
		text = append(text, "user root")
	}
	if secure {
		m.secure(t)
		text = append(text, "cafile "+m.file("ca.pem"), "certfile "+m.file("server.pem"), "keyfile "+m.file("server.key"),
			"allow_anonymous false", "password_file "+m.file("passwords"))
	} else {
		text = append(text, "allow_anonymous true")
	}
	m.text = strings.Join(append(text, lines...), "\n") + "\n"
	m.write(t, "mosquitto.conf", m.text, 0o644)
	m.start(t)
	t.Cleanup(func() {
		_ = m.child.Stop(syscall.SIGTERM, 10*time.Second)
		if t.Failed() && testing.Verbose() {
			t.Log(m.log())
		}
	})
	return m
}

func (m *mosquitto) file(name string) string { return filepath.Join(m.dir, name) }

func (m *mosquitto) write(t testing.TB, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(m.file(name), []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func (m *mosquitto) log() string {
	text, err := os.ReadFile(m.file("log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (m *mosquitto) start(t testing.TB) {
	t.Helper()
	cmd := exec.Command(m.path, "-c", m.file("mosquitto.conf"))
	log, err := os.OpenFile(m.file("log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	cmd.Stdout, cmd.Stderr = log, log
	if m.child, err = proc.Start(cmd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if conn, err := net.Dial("tcp", m.address); err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-m.child.Done():
			t.Fatalf("mosquitto ended: %s", m.log())
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatalf("mosquitto did not start: %s", m.log())
}

// restart stops the broker, which then writes its messages to disk, and starts it again.
func (m *mosquitto) restart(t testing.TB, pause time.Duration) {
	t.Helper()
	if err := m.child.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	time.Sleep(pause)
	m.start(t)
}

// secure creates a password, and certificates for a name that differs from the address.
func (m *mosquitto) secure(t testing.TB) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "broker.test"}, DNSNames: []string{"broker.test"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	check(err)
	der, err := x509.CreateCertificate(rand.Reader, server, ca, key.Public(), caKey)
	check(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	m.write(t, "ca.pem", encode("CERTIFICATE", caDER), 0o644)
	m.write(t, "server.pem", encode("CERTIFICATE", der), 0o644)
	m.write(t, "server.key", encode("PRIVATE KEY", keyDER), 0o644)
	const password = "two words and a ü"
	m.write(t, "password", password+"\n", 0o600)
	m.password(t, "loadstar", password)
	m.config.Broker = "mqtts://" + m.address
	m.config.User, m.config.PasswordFile = "loadstar", m.file("password")
	m.config.CAFile, m.config.ServerName = m.file("ca.pem"), "broker.test"
}

// password adds a user.
func (m *mosquitto) password(t testing.TB, user, password string) {
	t.Helper()
	args := []string{"-b", m.file("passwords"), user, password}
	if _, err := os.Stat(m.file("passwords")); err != nil {
		args = append([]string{"-c"}, args...)
	}
	if out, err := exec.Command("mosquitto_passwd", args...).CombinedOutput(); err != nil {
		t.Fatalf("mosquitto_passwd: %v %s", err, out)
	}
	if err := os.Chmod(m.file("passwords"), 0o644); err != nil {
		t.Fatal(err)
	}
}
