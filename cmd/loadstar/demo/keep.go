package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"loadstar/series"
)

// write writes the agent's history and configuration, with which 'loadstar agent run' can
// continue.
func (s *site) write(past *series.Dataset) error {
	for i := range past.Len() {
		s.clients = append(s.clients, past.Meter(i).ID)
	}
	if err := series.WritePrepared(filepath.Join(s.dir, historyFile), past); err != nil {
		return err
	}
	all := s.stage.all
	var b strings.Builder
	fmt.Fprintf(&b, `# Written by loadstar demo. The readings are GENERATED: no meter measured them.
dir: .
site: {name: %s, zone: %s, country: %s, interval: %dm}
server: required
history: %s
http: {listen: "%s"}
forecast: {h: %dh, delay: %dm}
policy: {%s} # less strict than the default, because the readings are generated
clients:
`, s.name, all.Clock, all.Country, all.Seconds()/60, historyFile, s.address, ahead, int(delay.Minutes()), strings.ReplaceAll(strings.Join(relaxed, ", "), "=", ": "))
	for _, c := range s.clients {
		fmt.Fprintf(&b, "  %s: {}\n", c)
	}
	return os.WriteFile(filepath.Join(s.dir, configFile), []byte(b.String()), 0o600)
}

const (
	historyFile = "history.prepared"
	configFile  = "agent.yaml"
)

// goOn returns the commands that continue with a kept folder, one for the server and one for
// each agent. The server's port must not change, because it is part of the address that the
// agents use.
func (x *show) goOn() []string {
	port := x.fleet.address[strings.LastIndex(x.fleet.address, ":"):]
	all := []string{fmt.Sprintf("loadstar serve --dir %s --listen 127.0.0.1%s --web %s", quoted(filepath.Join(x.dir, "server")), port,
		strings.TrimSuffix(strings.TrimPrefix(x.fleet.page, "http://"), "/"))}
	for _, s := range x.sites {
		all = append(all, "loadstar agent run --config "+quoted(filepath.Join(s.dir, configFile)))
	}
	return all
}

// quoted quotes a path with spaces for a shell.
func quoted(path string) string {
	if strings.Contains(path, " ") {
		return strconv.Quote(path)
	}
	return path
}
