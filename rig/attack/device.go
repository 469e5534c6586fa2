package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	v1 "loadstar/proto/loadstar/v1"

	"loadstar/internal/testkit"
	"loadstar/rig/product"
)

// devices lists the attacks of the second review on an agent's machine and on its files.
func devices() []Attack {
	return []Attack{
		{ID: "S6a", Name: "one JSON object stops an agent's intake", Run: stopIntake},
		{ID: "S6b", Name: "four documents take more memory than the agent's unit has", Run: fillMemory},
		{ID: "S8", Name: "256 connections without the token shut an agent's interface", Run: shutInterface},
		{ID: "SL3", Name: "a Parquet file of some kilobytes takes hundreds of megabytes", Run: largePages},
		{ID: "SL4", Name: "prepared readings are for all users to read", Run: readableReadings},
	}
}

// probes lists attacks that no review has carried out and to which no known version is
// vulnerable.
func probes() []Attack {
	return []Attack{
		{ID: "X1", Name: "calls of an agent succeed after its revocation, in a race", Run: revocationRace},
		{ID: "X2", Name: "a page in a real browser reads dashboard and agent under a foreign name", Run: rebind},
		{ID: "X3", Name: "a request hides in another one behind nginx", Run: smuggle},
	}
}

// forecaster is a running agent that forecasts, with its HTTP interface.
type forecaster struct {
	*product.Process
	host, token string
}

// forecaster starts an agent without a server.
func (f *Fleet) forecaster(ctx context.Context, token string) (*forecaster, error) {
	host, err := testkit.FreeAddress()
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("dir: agent\nsite: {zone: Etc/UTC, interval: 1h}\nserver: none\nclients: {home: {}}\nhttp: {listen: %q", host)
	if token != "" {
		file, err := f.write("token", token+"\n")
		if err != nil {
			return nil, err
		}
		text += fmt.Sprintf(", token_file: %q", file)
	}
	config, err := f.write("agent.yaml", text+"}\n")
	if err != nil {
		return nil, err
	}
	a := &forecaster{host: host, token: token}
	if a.Process, err = f.start("agent-run", "agent", "run", "--config", config); err != nil {
		return nil, err
	}
	ok, err := product.Eventually(ctx, 30*time.Second, func() (bool, error) {
		select {
		case <-a.Done():
			return false, fmt.Errorf("agent run: %w: %s", product.ErrEnded, product.LastLine(a.Log()))
		default:
		}
		status, err := a.send(ctx, http.MethodGet, "/healthz", "", 5*time.Second)
		return err == nil && status == http.StatusOK, nil
	})
	if err == nil && !ok {
		err = errors.New("the agent does not respond")
	}
	return a, err
}

// send makes a request over a separate connection and returns the status.
func (a *forecaster) send(ctx context.Context, method, path, body string, within time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+a.host+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	answer, err := clientFrom(honestFrom, 0).Do(r)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, errors.Join(err, answer.Body.Close())
}

// memory returns the current or the highest resident memory of the process in MB. The name is
// VmRSS or VmHWM, as in /proc.
func memory(p *product.Process, name string) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(line(string(text), name))
	if len(fields) < 2 {
		return 0, fmt.Errorf("no %s", name)
	}
	kb, err := strconv.Atoi(fields[1])
	return kb >> 10, err
}

const reading = `[{"unique_id":"home","ds":"2026-11-17T08:00:00Z","y":1}]`

// stopIntake succeeds if the agent does not accept a reading within 30 s while five objects
// with 300,000 keys each are posted as weather.
func stopIntake(ctx context.Context, f *Fleet) (Result, error) {
	a := must(f.forecaster(ctx, ""))
	must(a.send(ctx, http.MethodPost, "/v1/readings", reading, 30*time.Second))
	var body strings.Builder
	body.WriteString(`[{"ds":"2026-11-17T08:00:00Z"`)
	for i := range 300_000 {
		fmt.Fprintf(&body, `,"k%d":1`, i)
	}
	body.WriteString("}]")
	posting, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for range 5 {
		wg.Go(func() { _, _ = a.send(posting, http.MethodPost, "/v1/weather", body.String(), time.Minute) }) // only the answer to the reading matters
	}
	check(product.Sleep(ctx, time.Second))
	begun := time.Now()
	status, err := a.send(ctx, http.MethodPost, "/v1/readings", reading, 30*time.Second)
	if err != nil {
		return succeeded("a reading is not taken: %v", err), nil
	}
	return repelled("a reading is answered with %d after %.1f s", status, time.Since(begun).Seconds()), nil
}

// fillMemory succeeds if four simultaneous documents of weather with 820,000 empty times raise
// the agent's memory by more than half of its systemd unit's limit.
func fillMemory(ctx context.Context, f *Fleet) (Result, error) {
	const most = 32 // MB
	a := must(f.forecaster(ctx, ""))
	before := must(memory(a.Process, "VmRSS"))
	const rows = 820_000
	body := `{"utc_offset_seconds":0,"hourly_units":{"temperature_2m":"°C"},"hourly":{"time":[` + strings.Repeat(`"",`, rows-1) + `""],"temperature_2m":[` + strings.Repeat("0,", rows-1) + "0]}}"
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _, _ = a.send(ctx, http.MethodPost, "/v1/weather", body, 2*time.Minute) }) // only the memory matters
	}
	wg.Wait()
	after := must(memory(a.Process, "VmHWM"))
	if after-before > most {
		return succeeded("from %d to %d MB", before, after), nil
	}
	return repelled("from %d to %d MB", before, after), nil
}

// shutInterface succeeds if a request with the token is not answered within 15 s while a
// stranger holds connections.
func shutInterface(ctx context.Context, f *Fleet) (Result, error) {
	a := must(f.forecaster(ctx, "0123456789abcdef"))
	check(f.hold(a.host, 300, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	for i := range 5 {
		if status, err := a.send(ctx, http.MethodGet, "/v1/clients", "", 15*time.Second); err != nil || status != http.StatusOK {
			return succeeded("request %d: status %d, %v", i+1, status, err), nil
		}
	}
	return repelled("five requests are answered"), nil
}

// largePages succeeds if data init needs more than 150 MB for a file of a few kilobytes.
func largePages(ctx context.Context, f *Fleet) (Result, error) {
	type row struct {
		Meter string  `parquet:"meter_id"`
		Time  int64   `parquet:"timestamp,timestamp(millisecond)"`
		Load  float64 `parquet:"load_kw"`
	}
	check(os.MkdirAll(f.path("bomb"), 0o700))
	file := must(os.Create(filepath.Join(f.path("bomb"), "bomb.parquet")))
	w := parquet.NewGenericWriter[row](file, parquet.Compression(&zstd.Codec{}), parquet.PageBufferSize(500<<20), parquet.WriteBufferSize(0))
	rows := make([]row, 10_000)
	for i := range rows {
		rows[i] = row{"m", 1_500_000_000_000, 1}
	}
	for range 800 {
		must(w.Write(rows))
	}
	check(errors.Join(w.Close(), file.Close()))
	info := must(os.Stat(file.Name()))
	// The rusage of a child includes the memory of its parent, so read the memory of the
	// process itself.
	p := must(f.start("data-init", "data", "init", f.path("bomb"), "--zone", "UTC", "--yes"))
	used := 0
	for ended := false; !ended; {
		select {
		case <-p.Done():
			ended = true
		case <-ctx.Done():
			return Result{}, ctx.Err()
		case <-time.After(2 * time.Millisecond):
			if n, err := memory(p, "VmHWM"); err == nil { // the process may have ended
				used = max(used, n)
			}
		}
	}
	if used == 0 && !strings.Contains(p.Log(), "smaller pages") { // a refusal can be too fast for the measurement
		return Result{}, errors.New("data init ended before its memory was measured")
	}
	if used > 150 {
		return succeeded("%d kB take %d MB", info.Size()>>10, used), nil
	}
	return repelled("%d kB take %d MB: %s", info.Size()>>10, used, product.LastLine(p.Log())), nil
}

// readableReadings succeeds if data prepare writes a file that users other than its owner can
// read.
func readableReadings(_ context.Context, f *Fleet) (Result, error) {
	info := must(os.Stat(f.data))
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return succeeded("%s has mode %04o", filepath.Base(f.data), mode), nil
	}
	return repelled("the file is private"), nil
}

// revocationRace succeeds if the server serves a call that an agent begins after the server has
// confirmed its revocation. The agent calls on eight connections without a pause.
func revocationRace(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	o := must(s.Operators())
	calls := 0
	for i := range 10 {
		a := must(s.JoinOne(ctx, fmt.Sprint("racer-", i)))
		var revoked atomic.Bool
		var late, all atomic.Int64
		calling, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for calling.Err() == nil {
					after := revoked.Load()
					_, err := a.Exchange(calling, &v1.ExchangeRequest{})
					all.Add(1)
					if after && err == nil {
						late.Add(1)
					}
					if connect.CodeOf(err) == connect.CodePermissionDenied {
						return
					}
				}
			})
		}
		if err := product.Sleep(ctx, 200*time.Millisecond); err != nil {
			stop()
			return Result{}, err
		}
		_, err := o.Revoke(ctx, &v1.RevokeRequest{Agent: a.ID})
		revoked.Store(true)
		if err == nil {
			err = product.Sleep(ctx, 300*time.Millisecond)
		}
		stop()
		wg.Wait()
		check(err)
		if n := late.Load(); n > 0 {
			return succeeded("%d calls are served after the revocation", n), nil
		}
		calls += int(all.Load())
	}
	return repelled("none of %d calls is served after its agent's revocation, in 10 races", calls), nil
}

// rebind succeeds if Chromium shows a page of the dashboard or of an agent under a name that an
// attacker has pointed at this machine.
func rebind(ctx context.Context, f *Fleet) (Result, error) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		return Result{}, errors.New("install chromium")
	}
	d := must(f.dashboard(ctx))
	a := must(f.forecaster(ctx, ""))
	show := func(name, address, path string) (string, error) {
		_, port, _ := strings.Cut(address, ":")
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+f.path("chromium"),
			"--host-resolver-rules=MAP evil.example 127.0.0.1", "--dump-dom", "http://"+name+":"+port+path).Output()
		return string(out), err
	}
	for _, target := range []struct{ address, path, shows string }{{d.host, "/api/info", "signed_in"}, {a.host, "/v1/clients", "home"}} {
		own, err := show("localhost", target.address, target.path)
		if err != nil || !strings.Contains(own, target.shows) {
			return Result{}, fmt.Errorf("the browser does not show %s under its own name: %.200s: %w", target.path, own, err)
		}
		foreign := must(show("evil.example", target.address, target.path))
		if strings.Contains(foreign, target.shows) {
			return succeeded("evil.example%s shows %.100s", target.path, foreign), nil
		}
	}
	return repelled("Chromium gets a refusal from both under the foreign name"), nil
}

// smuggle succeeds if the dashboard behind Debian's nginx, with our example configuration,
// answers a request that was hidden in the body of another one. The hidden request uses a path
// that nginx itself does not forward in this test.
func smuggle(ctx context.Context, f *Fleet) (Result, error) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		if nginx, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			return Result{}, errors.New("install nginx-light")
		}
	}
	d := must(f.dashboard(ctx, "--set", "web.behind_proxy=true"))
	front := must(testkit.FreeAddress())
	example := must(os.ReadFile(filepath.Join("..", "deploy", "nginx", "loadstar.conf"))) // make attacks runs in rig
	// Use the example configuration without TLS, and with a path that only the proxy refuses.
	var kept []string
	for l := range strings.Lines(string(example)) {
		if !strings.Contains(l, "ssl_") {
			kept = append(kept, l)
		}
	}
	server := strings.NewReplacer("listen 443 ssl;", "listen "+front+";\n\tlocation = /api/info { return 403; }", "127.0.0.1:7445", d.host).Replace(strings.Join(kept, ""))
	config, err := f.write("nginx.conf", fmt.Sprintf("daemon off;\npid %s;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\nclient_body_temp_path %s;\nproxy_temp_path %s;\nfastcgi_temp_path %s;\nuwsgi_temp_path %s;\nscgi_temp_path %s;\n%s}\n",
		f.path("nginx.pid"), f.path("body"), f.path("proxy"), f.path("fastcgi"), f.path("uwsgi"), f.path("scgi"), server))
	check(err)
	must(f.startBinary(nginx, "nginx", "-c", config, "-p", f.dir))
	exchange := func(request string) (string, error) {
		c, err := net.DialTimeout("tcp", front, 5*time.Second)
		if err != nil {
			return "", err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return "", err
		}
		if _, err := io.WriteString(c, request); err != nil {
			return "", err
		}
		text, _ := io.ReadAll(c) // until the other side closes the connection or the time is up
		return string(text), nil
	}
	ok, err := product.Eventually(ctx, 20*time.Second, func() (bool, error) {
		text, err := exchange("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		return err == nil && strings.Contains(text, " 200 "), nil
	})
	if err != nil || !ok {
		return Result{}, fmt.Errorf("nginx does not forward requests: %w", err)
	}
	// The dashboard serves the path, and nginx refuses it.
	if _, _, own, err := d.ask(ctx, http.MethodGet, "/api/info", "", ""); err != nil || !strings.Contains(own, "signed_in") {
		return Result{}, fmt.Errorf("the dashboard does not respond: %s: %w", own, err)
	}
	if text, err := exchange("GET /api/info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil || !strings.Contains(text, " 403 ") {
		return Result{}, fmt.Errorf("nginx forwards the path: %s: %w", text, err)
	}
	const hidden = "GET /api/info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	chunked := "0\r\n\r\n" + hidden
	for name, request := range map[string]string{
		"two lengths":           fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: %d\r\n\r\n%s", len(hidden), hidden),
		"length and chunks":     fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%s", len(chunked), chunked),
		"an odd encoding":       fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding: xchunked\r\n\r\n%s", len(chunked), chunked),
		"a space in the header": fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding : chunked\r\n\r\n%s", len(chunked), chunked),
		"a bare line feed":      fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nX: y\nTransfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n%s", len(chunked), chunked),
		"a folded header":       fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding:\r\n chunked\r\n\r\n%s", len(chunked), chunked),
	} {
		text := must(exchange(request + "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
		if strings.Contains(text, "signed_in") {
			return succeeded("%s", name), nil
		}
	}
	return repelled("none of six forms brings a hidden request to the dashboard"), nil
}
