package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"

	"loadstar/rig/product"
)

// identities lists the attacks on tokens, certificates and bindings.
func identities() []Attack {
	return []Attack{
		{ID: "H6a", Name: "an agent that was away while its certificate expired is locked out", Run: lapsed, Long: true},
		{ID: "H6b", Name: "an agent that joins again loses its clients", Run: joinsAgain},
		{ID: "H8", Name: "a stolen operator's folder cannot be shut out", Run: stolenOperator},
		{ID: "H9a", Name: "a leaked token cannot be revoked, and who joined with it is not known", Run: leakedToken},
		{ID: "H9b", Name: "the join token is in the arguments of a process", Run: visibleToken},
		{ID: "M1", Name: "a thief takes the clients of a revoked agent", Run: takeOver},
		{ID: "M3", Name: "a copied identity renews beside the original, unnoticed", Run: copiedIdentity},
		{ID: "M7", Name: "an agent of an unknown protocol version is served", Run: unknownProtocol},
	}
}

// lapsed succeeds if an agent that is started again after its certificate has expired cannot
// announce its clients within 20 s.
func lapsed(ctx context.Context, f *Fleet) (Result, error) {
	const valid = time.Minute // the minimum that serve accepts
	s := must(f.killedAgent(ctx, "away", "--set", "agents.certificates="+valid.String()))
	check(product.Sleep(ctx, valid+2*time.Second))
	back := time.Now()
	must(f.startAgain("away", "1/1"))
	ok := must(s.seenSince(ctx, "gen_", back, 20*time.Second))
	text := must(os.ReadFile(f.path("away.log")))
	if !ok {
		return succeeded("the agent is not seen again: %s", product.LastLine(string(text))), nil
	}
	return repelled("the agent is seen again %.0f s after its start", time.Since(back).Seconds()), nil
}

// killedAgent starts a server and an agent, and kills the agent once its clients are known.
func (f *Fleet) killedAgent(ctx context.Context, name string, flags ...string) (*Server, error) {
	s, err := f.Serve(ctx, flags...)
	if err != nil {
		return nil, err
	}
	p, err := f.StartAgent(ctx, s, name, "1/1")
	if err != nil {
		return nil, err
	}
	if err := s.announced(ctx, meters); err != nil {
		return nil, err
	}
	return s, p.Kill()
}

// joinsAgain succeeds if an agent that follows the program's advice to join again in its old
// folder does not bring its clients back within 15 s.
func joinsAgain(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.killedAgent(ctx, "again"))
	t := must(s.Token(ctx, 1))
	join := func() error {
		_, err := run(ctx, f.bin, nil, "agent", "join", "https://"+s.Host, t.Text(), "--dir", f.path("again"))
		return err
	}
	refused := join()
	if refused == nil {
		return Result{}, errors.New("an agent with a valid identity may join again")
	}
	check(obey(refused.Error()))
	check(join())
	back := time.Now()
	p := must(f.startAgain("again", "1/1"))
	ok := must(s.seenSince(ctx, "gen_", back, 15*time.Second))
	if !ok {
		return succeeded("its clients are not seen again: %s", line(p.Log(), "WARN")), nil
	}
	return repelled("its clients are seen again"), nil
}

// obey follows the advice of a message, which is "remove PATH" or "rename PATH to NAME".
func obey(message string) error {
	words := strings.Fields(strings.NewReplacer(",", " ", ";", " ").Replace(message))
	for i, w := range words {
		switch {
		case w == "remove" && i+1 < len(words):
			return os.Remove(words[i+1])
		case w == "rename" && i+3 < len(words):
			return os.Rename(words[i+1], filepath.Join(filepath.Dir(words[i+1]), filepath.Base(words[i+3])))
		}
	}
	return fmt.Errorf("no advice in %s", message)
}

// seenSince waits until the server has seen the agent of a client after the given time.
func (s *Server) seenSince(ctx context.Context, client string, since time.Time, within time.Duration) (bool, error) {
	o, err := s.Operators()
	if err != nil {
		return false, err
	}
	return product.Eventually(ctx, within, func() (bool, error) {
		r, err := o.ListClients(ctx, &v1.ListClientsRequest{Limit: 100})
		if err != nil {
			return false, err
		}
		for _, c := range r.Clients {
			if strings.HasPrefix(c.Name, client) && c.Seen > since.UnixMilli() {
				return true, nil
			}
		}
		return false, nil
	})
}

// stolenOperator succeeds if a copy of the operator's folder can still create tokens after
// the operator has created new credentials and revoked the old ones.
func stolenOperator(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	own, stolen := filepath.Join(s.Dir, "operator"), f.path("stolen")
	check(os.CopyFS(stolen, os.DirFS(own)))
	leaf := must(firstCertificate(filepath.Join(stolen, "cert.pem")))
	// A server writes new credentials at its start if it finds none.
	check(errors.Join(s.Kill(), os.RemoveAll(own)))
	s = must(f.Serve(ctx))
	o := must(s.Operators())
	if _, err := o.RevokeCertificate(ctx, &v1.RevokeCertificateRequest{Serial: fmt.Sprintf("%032x", leaf.SerialNumber)}); err != nil {
		return Result{}, fmt.Errorf("revoking: %w", err)
	}
	thief := must(s.operatorsFrom(stolen))
	_, err := thief.CreateToken(ctx, &v1.CreateTokenRequest{Uses: 1, TtlSeconds: 3600})
	if err == nil {
		return succeeded("the copy creates a token"), nil
	}
	if _, err := o.CreateToken(ctx, &v1.CreateTokenRequest{Uses: 1, TtlSeconds: 3600}); err != nil {
		return Result{}, fmt.Errorf("the new credentials do not work either: %w", err)
	}
	return repelled("the copy is refused: %v", err), nil
}

func firstCertificate(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s has no certificate", path)
	}
	return x509.ParseCertificate(block.Bytes)
}

// leakedToken succeeds if an agent can still join with a token that the operator has revoked,
// or if the server does not name the agents that joined with it.
func leakedToken(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	t := must(s.Token(ctx, 5))
	thief := must(s.Join(ctx, t, "thief"))
	o := must(s.Operators())
	tokens := must(o.ListTokens(ctx, &v1.ListTokensRequest{Limit: 10}))
	if len(tokens.Tokens) != 1 {
		return Result{}, fmt.Errorf("there are %d tokens", len(tokens.Tokens))
	}
	id := tokens.Tokens[0].Id
	agents := must(o.ListAgents(ctx, &v1.ListAgentsRequest{Limit: 10}))
	known := slices.ContainsFunc(agents.Agents, func(a *v1.Agent) bool { return a.Id == thief.ID && a.Token == id })
	must(o.RevokeToken(ctx, &v1.RevokeTokenRequest{Id: id}))
	_, err := s.Join(ctx, t, "thief-2")
	if err == nil || !known {
		return succeeded("second join refused: %v; origin of the first known: %v", err != nil, known), nil
	}
	return repelled("second join: %v; origin of the first is known", err), nil
}

// visibleToken succeeds if an agent can join only with its token among the arguments, which all
// users of a machine can read, or if the token appears in the process's output or files.
func visibleToken(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	t := must(s.Token(ctx, 1))
	cmd := exec.CommandContext(ctx, f.bin, "agent", "join", "https://"+s.Host, "-", "--dir", f.path("agent"))
	stdin := must(cmd.StdinPipe())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	check(cmd.Start())
	_, err := io.WriteString(stdin, t.Text()+"\n")
	shown, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid)) // the process may have ended
	err = errors.Join(err, stdin.Close())
	if e := cmd.Wait(); e != nil || err != nil {
		return succeeded("joining with the token on standard input: %s", product.LastLine(out.String())), nil
	}
	found := ""
	check(filepath.WalkDir(f.path("agent"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), t.Text()) {
			found = path
		}
		return err
	}))
	if strings.Contains(string(shown)+out.String(), t.Text()) || found != "" {
		return succeeded("the token is in the arguments, the output or a file %s", found), nil
	}
	return repelled("the agent joined, and the token is neither in its arguments nor in its output or files"), nil
}

// takeOver succeeds if another agent gets the clients of a revoked agent.
func takeOver(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	t := must(s.Token(ctx, 2))
	owner := must(s.Join(ctx, t, "owner"))
	thief := must(s.Join(ctx, t, "thief"))
	list := []string{"meter-1", "meter-2"}
	if refused, err := owner.Host(ctx, nil, list...); err != nil || len(refused) > 0 {
		return Result{}, fmt.Errorf("the owner's clients are refused: %v %v", refused, err)
	}
	if refused, err := thief.Host(ctx, nil, list...); err != nil || len(refused) != 2 {
		return Result{}, fmt.Errorf("the thief's clients are not refused: %v %v", refused, err)
	}
	o := must(s.Operators())
	must(o.Revoke(ctx, &v1.RevokeRequest{Agent: owner.ID}))
	refused := must(thief.Host(ctx, nil, list...))
	if len(refused) < 2 {
		return succeeded("the thief gets %d of 2 clients", 2-len(refused)), nil
	}
	return repelled("both clients are refused to the thief"), nil
}

// copiedIdentity succeeds if a thief renews a certificate with a copy of an agent's key, and the
// list of agents does not mark the agent as copied.
func copiedIdentity(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	original := must(s.JoinOne(ctx, "original"))
	must(original.Host(ctx, nil, "meter-1"))
	thief := must(s.renew(ctx, original))
	_, theirs := thief.checkIn(ctx, &v1.ExchangeRequest{})
	mine, second := s.renew(ctx, original)
	if second == nil {
		_, second = mine.checkIn(ctx, &v1.ExchangeRequest{})
	}
	if second == nil {
		_, theirs = thief.checkIn(ctx, &v1.ExchangeRequest{})
	}
	o := must(s.Operators())
	agents := must(o.ListAgents(ctx, &v1.ListAgentsRequest{Limit: 10}))
	noticed := len(agents.Agents) == 1 && agents.Agents[0].Copied != 0
	seen := fmt.Sprintf("thief served: %v; original served: %v; noticed: %v", theirs == nil, second == nil, noticed)
	if !noticed {
		return succeeded("%s", seen), nil
	}
	return repelled("%s", seen), nil
}

// renew requests a new certificate for an agent and its current key, and returns the agent with
// that certificate.
func (s *Server) renew(ctx context.Context, a *Agent) (*Agent, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, a.Key)
	if err != nil {
		return nil, err
	}
	r, err := a.Renew(ctx, &v1.RenewRequest{Csr: csr})
	if err != nil {
		return nil, err
	}
	return s.agent(a.ID, a.Key, r.Certificates)
}

// unknownProtocol succeeds if the server does not report its version of the protocol, serves
// an agent whose version is older than any existing one, or does not show operators the
// versions of their agents.
func unknownProtocol(ctx context.Context, f *Fleet) (Result, error) {
	s := must(f.Serve(ctx))
	a := must(s.JoinOne(ctx, "future"))
	const header, mine = "Loadstar-Protocol", 1000
	theirs := ""
	call := func(procedure, version string, message proto.Message) (int, error) {
		body, err := proto.Marshal(message)
		if err != nil {
			return 0, err
		}
		r, err := a.post(ctx, procedure, body, header, version)
		if err != nil {
			return 0, err
		}
		theirs = r.Header.Get(header)
		return r.StatusCode, nil
	}
	announced, err := call(v1.AgentServiceAnnounceProcedure, fmt.Sprint(mine), &v1.AnnounceRequest{Clients: []string{"meter"}, StepSeconds: 3600})
	if err != nil || announced != http.StatusOK {
		return Result{}, fmt.Errorf("announce: status %d: %w", announced, err)
	}
	if theirs == "" {
		return succeeded("the server does not say its version"), nil
	}
	old := must(call(v1.AgentServiceExchangeProcedure, "0", &v1.ExchangeRequest{}))
	o := must(s.Operators())
	agents := must(o.ListAgents(ctx, &v1.ListAgentsRequest{Limit: 10}))
	shown := len(agents.Agents) == 1 && agents.Agents[0].Protocol == mine
	seen := fmt.Sprintf("the server speaks version %s; an agent of version 0 gets status %d; operators see version %d: %v", theirs, old, mine, shown)
	if old == http.StatusOK || !shown {
		return succeeded("%s", seen), nil
	}
	return repelled("%s", seen), nil
}

// holdsKey reports whether a PEM file contains the private key of a public key.
func holdsKey(text []byte, public any) bool {
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return false
		}
		text = rest
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			continue
		}
		if k, ok := key.(*ecdsa.PrivateKey); ok && k.PublicKey.Equal(public) {
			return true
		}
	}
}
