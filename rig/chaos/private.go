package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"loadstar/fed/member"
	"loadstar/internal/mtls"
	"loadstar/internal/testkit"
	"loadstar/keeper"
	"loadstar/rig/product"
	"loadstar/server/keepers"
	serverledger "loadstar/server/ledger"
)

// keeperName is the name of the keeper in plans.
const keeperName = "auditor"

// auditor is the keeper of a system.
type auditor struct {
	*system
	*process
	folder string
	pin    member.Pin
}

// startKeeper creates and starts a keeper for the server with the given database. It returns
// the arguments that give servers the keeper's address and identity.
func startKeeper(ctx context.Context, s *system, database string) (args []string, err error) {
	a := &auditor{system: s, folder: s.serverDir("keeper")}
	l, err := serverledger.Open(ctx, database)
	if err != nil {
		return nil, err
	}
	key, err := l.KeepersKey(ctx)
	if err = errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	port, err := testkit.FreePort()
	if err != nil {
		return nil, err
	}
	pin, err := s.command(ctx, "keeper", "init", "--dir", a.folder, "--listen", loopback(port), "--server", keepers.Fingerprint(key), "--least", "2", "--age", "0s")
	if err != nil {
		return nil, err
	}
	if a.pin, err = member.ParsePin(pin); err != nil {
		return nil, err
	}
	code, err := s.command(ctx, "keeper", "invite", "--dir", a.folder, "--uses", fmt.Sprint(s.agents))
	if err != nil {
		return nil, err
	}
	if err := mtls.WritePrivate(a.invitations(), []byte(code+"\n")); err != nil {
		return nil, err
	}
	a.process = s.process(kindKeeper, "keeper", "keeper", "run", "--dir", a.folder)
	s.auditor, s.servers = a, append(s.servers, a.process)
	return []string{"--set", fmt.Sprintf("keepers=[%s=https://%s %s]", keeperName, loopback(port), pin)}, a.Start()
}

func (a *auditor) invitations() string { return filepath.Join(a.dir, "invitations.txt") }

// trusted returns the arguments for an agent that trains only private plans.
func (a *auditor) trusted() []string {
	return []string{
		"--invitations", a.invitations(), "--policy", "private=require", "--policy", "keepers=[" + a.pin.String() + "]", "--policy", "least_members=2",
	}
}

// privateOf returns the private plan of run i. Plans with and without a check of norms by the
// keeper alternate. The seed decides which kind comes first.
func privateOf(i int, seed uint64, rounds, cohort int) plan {
	kinds := []string{
		"algorithm: fedadam\npartition: head\nclient: {steps: 1, batch: 16}\nprivacy: {mode: private, keepers: [auditor], least: 2, check: none}\n",
		"algorithm: scaffold\npartition: head\nserver: {clip: 1}\nclient: {lr: 0.05, steps: 1, batch: 16}\nprivacy: {mode: private, keepers: [auditor], least: 2, check: norm}\n",
		"algorithm: fedavg\nserver: {weighting: examples}\nclient: {steps: 1, batch: 16}\nprivacy: {mode: private, keepers: [auditor], least: 2, check: norm}\n",
	}
	name := fmt.Sprintf("private-%03d", i)
	return plan{name, fmt.Sprintf("name: %s\nseed: %d\n%smodel: {name: bose2023}\nrounds: %d\nschedule: {cohort: %d}\nevaluate: {every: 2, clients: 2, windows: 8}\n",
		name, seed+uint64(i), kinds[(seed+uint64(i))%uint64(len(kinds))], rounds, cohort)}
}

// enrolled waits until all agents have the keeper's receipt. Before that, they decline private
// plans.
func (a *auditor) enrolled(ctx context.Context, limit time.Duration) error {
	has := func() (n int) {
		for _, p := range a.hosts {
			if said(p.log, "enrolled with a keeper") > 0 {
				n++
			}
		}
		return n
	}
	all, err := product.Eventually(ctx, limit, func() (bool, error) { return has() == len(a.hosts), nil })
	if err == nil && !all {
		err = fmt.Errorf("%d of %d agents enrolled with the keeper within %s", has(), len(a.hosts), limit)
	}
	return err
}

// said returns the number of lines of a log that contain a string.
func said(log, text string) (n int) {
	f, err := os.Open(log)
	if err != nil {
		return 0 // the process has not started yet
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.Contains(lines.Text(), text) {
			n++
		}
	}
	return n
}

// addReleases compares the releases in the log of a stopped keeper with the rounds that were
// merged. The keeper must have released each of these rounds, no round twice, and no round that the
// ledger does not have. Whatever was killed, the keeper has no reason to refuse requests of honest
// servers.
func (a *auditor) addReleases(ctx context.Context, f *findings) error {
	out, err := a.command(ctx, "keeper", "log", "--dir", a.folder, "--last", "100000", "--json")
	if err != nil {
		return err
	}
	var entries []keeper.Entry
	if err := json.Unmarshal([]byte(out), &entries); err != nil {
		return err
	}
	released := map[turn]int{}
	for _, e := range entries {
		if e.Kind != "release" {
			continue
		}
		var t turn
		name, rest, _ := strings.Cut(strings.TrimPrefix(e.Text, "run "), ", ")
		if _, err := fmt.Sscanf(rest, "round %d:", &t.round); err != nil {
			return fmt.Errorf("entry %d of the keeper's log is %q", e.Number, e.Text)
		}
		t.round-- // the ledger counts from 0
		t.run = name
		f.released++
		if released[t]++; released[t] > 1 {
			f.again++
			f.fault("the keeper has released round %d of %s twice", t.round, t.run)
		}
	}
	rounds, err := a.ledger.rounds(ctx)
	if err != nil {
		return err
	}
	for _, r := range rounds {
		t := turn{run: r.run, round: r.round}
		if released[t] == 0 && r.state == "merged" {
			f.fault("round %d of %s was merged, and the keeper has not released it", r.round, r.run)
		}
		delete(released, t)
	}
	for t := range released {
		f.fault("the keeper has released round %d of %s, which the ledger does not have", t.round, t.run)
	}
	// The keeper refuses to check a result if it has released the round in the meantime.
	if n := said(a.log, "refused a call") - said(a.log, "refused a call\" call=check rule=once"); n > 0 {
		f.fault("the keeper has refused %d calls of honest servers; see its log", n)
	}
	return nil
}
