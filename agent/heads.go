package agent

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"slices"

	"loadstar/agent/state"
	"loadstar/internal/head"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

const (
	// headsReported and headsRead limit the heads in a check-in and in a task, respectively. The
	// server has the same limit for check-ins, and a lower one for tasks.
	headsReported, headsRead = 4, 256
)

// headCheck compares weights with the heads that the server has signed.
type headCheck struct {
	*Config
	store *state.Store
	key   ed25519.PublicKey // key of the server's heads; nil if the agent joined without one
}

// active reports whether the agent compares weights with the server's signed heads.
func (c *headCheck) active() bool { return c.Policy.MostStep > 0 && c.key != nil }

// read checks the heads of a job and adds them to the trail of its run. It returns the
// reason to decline the job, or an empty string.
func (c *headCheck) read(j *job, t *state.Trail) (reason string) {
	if t.Forked != "" {
		return t.Forked
	}
	if len(j.GetHeads()) > headsRead {
		return fmt.Sprintf("the task has %d heads, at most %d are read", len(j.GetHeads()), headsRead)
	}
	fork := func(format string, x ...any) string {
		t.Forked = "two stories: " + fmt.Sprintf(format, x...)
		return t.Forked
	}
	for _, x := range j.GetHeads() {
		h := head.Head{Run: j.GetRun(), Version: x.GetVersion(), Weights: x.GetWeights(), Previous: x.GetPrevious(), Signature: x.GetSignature()}
		if !h.Valid(c.key) {
			return fmt.Sprintf("the head of version %d is not signed with the key of the server that this agent joined", h.Version)
		}
		switch {
		case len(t.Hash) == 0: // the first head of the run that this agent sees
		case h.Version == t.Version && !bytes.Equal(h.Hash(), t.Hash):
			return fork("the server has signed two heads of version %d", h.Version)
		case h.Version <= t.Version:
			if known := t.Weights(h.Version); known != "" && known != h.Weights {
				return fork("the server has signed two heads of version %d", h.Version)
			}
			continue
		case !bytes.Equal(h.Previous, t.Hash):
			return fork("the head of version %d does not follow that of version %d, which this agent has seen", h.Version, t.Version)
		}
		t.Version, t.Hash = h.Version, h.Hash()
		t.Known = append(t.Known, state.KnownVersion{Version: h.Version, Weights: h.Weights})
	}
	switch known := t.Weights(j.GetVersion()); {
	case known == "":
		return fmt.Sprintf("the server has not yet shown a head of version %d", j.GetVersion())
	case known != j.GetWeights():
		return fork("the weights of version %d are not those that the server has signed", j.GetVersion())
	}
	return ""
}

// check checks the heads of a job, and stores those that the agent has seen. It returns the
// reason to decline the job, or an empty string.
func (c *headCheck) check(j *job, t state.Trail, keep bool) (reason string, err error) {
	before := t
	reason = c.read(j, &t)
	if t.Forked != before.Forked {
		c.Log.Error("the server contradicts itself, so this agent no longer trains this run", "run", j.GetRun(), "version", j.GetVersion(),
			"weights", j.GetWeights(), "reason", reason, "heads", fmt.Sprint(j.GetHeads()), "seen", before.Version, "hash", fmt.Sprintf("%x", before.Hash))
	}
	if keep && (t.Version != before.Version || t.Forked != before.Forked || len(before.Hash) == 0 && len(t.Hash) > 0) {
		if err := c.store.Follow(j.GetRun(), t); err != nil {
			return "", storeError(err)
		}
	}
	return reason, nil
}

// seen returns the newest heads of the latest runs, for the server to compare.
func (c *headCheck) seen() (all []*loadstarv1.SeenHead, err error) {
	if !c.active() {
		return nil, nil
	}
	runs, trails, err := c.store.Trails(headsReported)
	if err != nil {
		return nil, storeError(err)
	}
	for i, t := range trails {
		all = append(all, &loadstarv1.SeenHead{Run: runs[i], Version: t.Version, Hash: t.Hash})
	}
	return all, nil
}

// noteForks records the runs with heads that this agent has seen but the server denies.
func (c *headCheck) noteForks(forked []string) error {
	if !c.active() || len(forked) == 0 {
		return nil
	}
	runs, trails, err := c.store.Trails(headsReported)
	if err != nil {
		return storeError(err)
	}
	for i, t := range trails {
		if t.Forked != "" || !slices.Contains(forked, runs[i]) {
			continue
		}
		t.Forked = fmt.Sprintf("two stories: the server no longer has the head of version %d that this agent has seen", t.Version)
		c.Log.Error("the server contradicts itself, so this agent no longer trains this run", "run", runs[i], "seen", t.Version, "hash", fmt.Sprintf("%x", t.Hash), "reason", t.Forked)
		if err := c.store.Follow(runs[i], t); err != nil {
			return storeError(err)
		}
	}
	return nil
}
