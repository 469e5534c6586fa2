package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"loadstar/agent/identity"
	"loadstar/agent/release"
	"loadstar/agent/state"
	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
	"loadstar/server/directory"
)

// recorder terminates TLS between an agent and the server, and records everything that
// the agent sends.
type recorder struct {
	url string

	mu    sync.Mutex
	sent  bytes.Buffer      // every header and body
	tasks map[int64]string  // hash of the weights, by round
	calls int               // number of check-ins that the server has answered
	open  int               // number of entries for open turns in the last check-in
	blobs map[string][]byte // blobs that the agent fetched, by hash
}

// record starts a recorder for one agent. It forwards calls with the client that forward
// returns.
func (st *station) record(forward func() *http.Client) *recorder {
	st.Helper()
	rec := &recorder{tasks: map[int64]string{}, blobs: map[string][]byte{}}
	settings, err := st.authority.TLS([]string{"127.0.0.1"})
	testkit.Must(st, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(st, err)
	rec.url = "https://" + l.Addr().String()
	s := &http.Server{TLSConfig: settings, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := rec.pass(w, r, st.url, forward()); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	})}
	go s.ServeTLS(l, "", "") // ends with the test
	st.Cleanup(func() { s.Close() })
	return rec
}

func (rec *recorder) pass(w http.ResponseWriter, r *http.Request, to string, forward *http.Client) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(r.Context(), r.Method, to+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	q.Header = r.Header.Clone()
	q.Header.Set("Accept-Encoding", "identity")
	answer, err := forward.Do(q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	back, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	fmt.Fprintf(&rec.sent, "%s %s %s\n", r.Method, r.URL, r.Host)
	for _, h := range []http.Header{r.Header, r.Trailer} {
		if err := h.Write(&rec.sent); err != nil {
			return err
		}
	}
	rec.sent.Write(body)
	if hash, ok := strings.CutPrefix(r.URL.Path, "/v1/blobs/"); ok && answer.StatusCode == http.StatusOK {
		rec.blobs[hash] = back
	}
	if strings.HasSuffix(r.URL.Path, "/Exchange") && answer.StatusCode == http.StatusOK {
		var s v1.ExchangeResponse
		if err := proto.Unmarshal(back, &s); err != nil {
			return err
		}
		for _, t := range s.Tasks {
			rec.tasks[t.Round] = t.Weights
		}
		for _, b := range s.Blobs {
			sum := sha256.Sum256(b)
			rec.blobs[hex.EncodeToString(sum[:])] = b
		}
		var q v1.ExchangeRequest
		if err := proto.Unmarshal(body, &q); err != nil {
			return err
		}
		rec.calls++
		rec.open = len(q.Training) + len(q.Pushed)
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	_, err = w.Write(back)
	return err
}

func (rec *recorder) checkIns() int {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.calls
}

// settled reports whether the agent's last check-in named no open turns.
func (rec *recorder) settled() bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.open == 0
}

// secrets holds values that must not be sent, in every encoding in which they could
// appear.
type secrets struct {
	words  map[uint32]string // values of four bytes, which may also occur by chance
	decoys map[uint32]bool   // harmless values, as many as words and of similar size
	pairs  map[uint64]string // values of eight bytes, which do not occur by chance
	longs  map[[16]byte]string
	texts  map[string]string
	rng    *rand.Rand
}

func newSecrets() *secrets {
	return &secrets{
		words: map[uint32]string{}, decoys: map[uint32]bool{}, pairs: map[uint64]string{}, longs: map[[16]byte]string{}, texts: map[string]string{},
		rng: rand.New(rand.NewPCG(1, 1)),
	}
}

// dull reports whether a number has so few significant binary digits that it may occur by
// chance.
func dull(f float32) bool { return math.Float32bits(f)&0xfff == 0 }

// numbers adds floats to the secrets, individually and in adjacent pairs.
func (s *secrets) numbers(what string, x []float32) {
	for _, f := range x {
		if b := math.Float32bits(f); !dull(f) {
			d := b ^ (1 + s.rng.Uint32N(1<<22))
			s.words[b], s.words[bits.ReverseBytes32(b)] = what, what
			s.decoys[d], s.decoys[bits.ReverseBytes32(d)] = true, true
		}
	}
	s.neighbours(what, x)
}

// neighbours adds adjacent pairs of floats to the secrets, in all binary encodings.
func (s *secrets) neighbours(what string, x []float32) {
	for i := 1; i < len(x); i++ {
		if dull(x[i-1]) || dull(x[i]) {
			continue
		}
		a, b := math.Float32bits(x[i-1]), math.Float32bits(x[i])
		s.pairs[uint64(a)|uint64(b)<<32] = what
		s.pairs[uint64(bits.ReverseBytes32(a))|uint64(bits.ReverseBytes32(b))<<32] = what + ", backwards"
		if i%8 != 0 {
			continue // a few pairs of a layer are enough
		}
		var little, big [16]byte
		for k, f := range x[i-1 : i+1] {
			binary.LittleEndian.PutUint64(little[8*k:], math.Float64bits(float64(f)))
			binary.BigEndian.PutUint64(big[8*k:], math.Float64bits(float64(f)))
		}
		s.longs[little], s.longs[big] = what+", as float64", what+", as float64 backwards"
	}
}

// exactly adds a number to the secrets, encoded as a float64.
func (s *secrets) exactly(what string, f float64) {
	b := math.Float64bits(f)
	s.pairs[b], s.pairs[bits.ReverseBytes64(b)] = what+", as float64", what+", as float64 backwards"
}

// text adds a number to the secrets, in decimal notation.
func (s *secrets) text(what string, f float32) {
	for _, t := range []string{strconv.FormatFloat(float64(f), 'g', -1, 32), strconv.FormatFloat(float64(f), 'f', 3, 64), strconv.FormatFloat(float64(f), 'e', 5, 64)} {
		if len(t) >= 7 && len(t) <= 12 {
			s.texts[t] = what
		}
	}
}

// in searches the sent bytes for secrets. It returns descriptions of the secrets that it found,
// and the numbers of words and decoys that it found.
func (s *secrets) in(sent []byte) (found []string, words, decoys int) {
	for i := 0; i+4 <= len(sent); i++ {
		w := binary.LittleEndian.Uint32(sent[i:])
		if _, ok := s.words[w]; ok {
			words++
		}
		if s.decoys[w] {
			decoys++
		}
		if i+8 <= len(sent) {
			if what, ok := s.pairs[binary.LittleEndian.Uint64(sent[i:])]; ok {
				found = append(found, what)
			}
		}
		if i+16 <= len(sent) {
			if what, ok := s.longs[[16]byte(sent[i:])]; ok {
				found = append(found, what)
			}
		}
	}
	for i := range sent {
		for n := 7; n <= 12 && i+n <= len(sent) && bytes.IndexByte([]byte("0123456789.e+-"), sent[i+n-1]) >= 0; n++ {
			if what, ok := s.texts[string(sent[i:i+n])]; ok {
				found = append(found, what+", as text")
			}
		}
	}
	// Report words only if there are many more than there would be by chance. The number of
	// decoys shows how many occur by chance.
	if excess := words - decoys; float64(excess) > 6*math.Sqrt(float64(decoys))+20 {
		found = append(found, fmt.Sprintf("%d numbers, and %d by chance", words, decoys))
	}
	return found, words, decoys
}

// TestWire checks that an agent never sends a personal weight, a reading or a range of values.
// It sends the change of the shared weights, sums of validation errors, and reports.
func TestWire(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	d := homes(t, 4)
	plan := "{algorithm: fedavg, partition: head, rounds: 3, model: {name: bose2023}, client: {steps: 3, batch: 16, lr: 0.01}, server: {clip: 0}, evaluate: {every: 1}}"
	// Home 0 has its own agent, which sends an individual update. The other homes share an
	// agent, which sends one sum.
	parts := map[string]*series.Dataset{"alone": firstHomes(t, d, 0, 1), "together": firstHomes(t, d, 1, 4)}
	recorders := map[string]*recorder{}
	var stops []func()
	for name, part := range parts {
		rec := st.record(sync.OnceValue(func() *http.Client {
			i, err := identity.Open(filepath.Join(st.Dir, name))
			testkit.Must(t, err)
			t.Cleanup(i.HTTPClient().CloseIdleConnections)
			return i.HTTPClient()
		}))
		recorders[name] = rec
		h := newShelf()
		for i := range part.Len() {
			h.reports = append(h.reports, release.Report{
				Client: part.Meter(i).ID, Day: directory.Today(time.Now()), Shares: map[string]float64{"model": 1}, RelativeMAE: 0.5, Coverage: 0.8,
			})
		}
		stops = append(stops, st.hostFor(name, rec.url, part, h))
	}
	run := func() string {
		s, err := st.operator.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan, Clients: 4})
		testkit.Must(t, err)
		return s.Run
	}()
	r := st.finished(run)
	for name, rec := range recorders {
		before := rec.checkIns()
		testkit.Eventually(st, name+" knows what was counted", func() bool { return rec.checkIns() > before+1 && rec.settled() })
	}
	for _, stop := range stops {
		stop()
	}

	p, err := recipe.Read([]byte(r.Plan))
	testkit.Must(t, err)
	problem, err := recipe.Frame(p, d)
	testkit.Must(t, err)
	plain, err := setup.New(p, problem, int(r.Fleet))
	testkit.Must(t, err)
	k, err := kernel.Default()
	testkit.Must(t, err)
	agents := map[string]*setup.Setup{}
	for name := range parts {
		key, err := state.Secret(filepath.Join(st.Dir, name))
		testkit.Must(t, err)
		agents[name], err = plain.OfAgent(key)
		testkit.Must(t, err)
	}
	rules := plain.Rules
	personal := problem.Partition.PersonalLen()
	if personal < 30_000 {
		t.Fatalf("%d personal weights", personal)
	}
	secret := newSecrets()
	var updates [][]byte // updates of home 0
	rec := recorders["alone"]
	initial := make([]float32, personal)
	problem.Partition.Cut(problem.Model.InitialWeights(p.Seed), make([]float32, problem.Partition.SharedLen()), initial)
	secret.numbers("an initial personal weight", initial)
	for i := range d.Len() {
		m := d.Meter(i)
		ranges := problem.Framer.Ranges(m)
		secret.numbers("a reading", m.Load)
		for _, f := range m.Load {
			secret.exactly("a reading", float64(f))
			secret.text("a reading", f)
		}
		for _, f := range []float32{ranges["load"].Low, ranges["load"].High} {
			secret.exactly("a range", float64(f))
			secret.text("a range", f)
		}
		// Repeat the agents' training, which gives bit-identical results.
		name := "together"
		if i == 0 {
			name = "alone"
		}
		w := agents[name].NewWorker(k)
		c := client.Client{ID: fed.ClientID(m.ID), Data: []series.Examples{problem.Framer.Windows(m, ranges)}, Kept: make([]float32, w.Kept()), First: true}
		copy(c.Kept, initial)
		for n := range int64(p.Rounds) {
			before := slices.Clone(c.Kept[:personal])
			task := fed.Task{Run: run, Round: int(n), Version: int(n), Shared: round.ReadFloats(nil, rec.blobs[rec.tasks[n]])}
			var u fed.Update
			testkit.Must(t, w.Train(t.Context(), &c, task, &u))
			if i == 0 {
				updates = append(updates, rules.AppendUpdate(nil, &u))
			}
			change := make([]float32, personal)
			for j := range change {
				change[j] = c.Kept[j] - before[j]
			}
			secret.numbers("a personal weight", c.Kept[:personal])
			// Search only for pairs of changes, because Adam changes many weights, both shared and
			// personal ones, by the same amount.
			secret.neighbours("the change of a personal weight", change)
		}
		store, err := state.Open(filepath.Join(st.Dir, name))
		testkit.Must(t, err)
		kept := make([]float32, len(c.Kept))
		if _, err := store.Load(run, m.ID, kept); err != nil || !slices.Equal(kept, c.Kept) {
			t.Fatalf("%s has other personal layers than the repeated training: %v", m.ID, err)
		}
		testkit.Must(t, store.Close())
	}

	for name, rec := range recorders {
		sent := rec.sent.Bytes()
		found, words, decoys := secret.in(sent)
		for _, what := range found[:min(len(found), 10)] {
			t.Errorf("%s: %s was sent", name, what)
		}
		t.Logf("%s: %d bytes, %d numbers and %d texts that must not be in them; %d words by chance, as %d decoys", name, len(sent), len(secret.words)/2, len(secret.texts), words, decoys)
	}
	// Evaluations and reports were sent, so the search has seen them.
	rounds, err := st.ledger.Rounds(t.Context(), run, 0, 10)
	testkit.Must(t, err)
	for _, r := range rounds {
		if r.Evaluation.Clients != 4 {
			t.Errorf("round %d: %d clients evaluated", r.Round, r.Evaluation.Clients)
		}
	}
	if days, err := st.ledger.Reports.ReportDays(t.Context(), "", 1); err != nil || len(days) != 1 || days[0].Total != 4 {
		t.Errorf("%+v, %v", days, err)
	}
	// Check that the search would find values if they were leaked.
	sent := rec.sent.Bytes()
	for n, u := range updates {
		if !bytes.Contains(sent, u) {
			t.Errorf("the update of round %d was not recorded", n)
		}
	}
	for what, leak := range map[string][]byte{
		"two weights":    round.AppendFloats(nil, initial[100:102]),
		"a big-endian":   binary.BigEndian.AppendUint64(nil, uint64(math.Float32bits(initial[200]))<<32|uint64(math.Float32bits(initial[201]))),
		"a float64":      binary.LittleEndian.AppendUint64(nil, math.Float64bits(float64(d.Meter(2).Load[77]))),
		"a text":         []byte(fmt.Sprint(d.Meter(3).Load[99])),
		"single weights": leaked(initial),
	} {
		if found, _, _ := secret.in(slices.Concat(sent, leak, []byte("end"))); len(found) != 1 {
			t.Errorf("%s was planted, but the search found %v", what, found)
		}
	}
}

// leaked encodes many weights as bytes, with other bytes between them.
func leaked(x []float32) (b []byte) {
	for i := 0; i < len(x); i += 50 {
		b = append(round.AppendFloats(b, x[i:i+1]), "...."...)
	}
	return b
}

// TestWhatLeaves compares the messages with a list of everything that can leave an agent, which
// docs/fleet.md explains. A new field requires a decision and a sentence in that document.
func TestWhatLeaves(t *testing.T) {
	want := strings.Fields(`
		Adapted.clients Adapted.evaluation Adapted.run
		AnnounceRequest.clients AnnounceRequest.generated AnnounceRequest.inputs AnnounceRequest.now AnnounceRequest.step_seconds AnnounceRequest.version
		ClientReport.client ClientReport.coverage ClientReport.day ClientReport.drift ClientReport.findings ClientReport.interim
		ClientReport.relative_mae ClientReport.release ClientReport.shares ClientReport.wants_round
		Decline.code Decline.reason Decline.turns EnrolRequest.agent EnrolRequest.enrolments Enrolment.keeper Enrolment.sealed Evaluation.clients Evaluation.relative_mae
		ExchangeRequest.adapted ExchangeRequest.declines ExchangeRequest.enrolments ExchangeRequest.have ExchangeRequest.heads ExchangeRequest.pushed ExchangeRequest.releases
		ExchangeRequest.reports ExchangeRequest.result ExchangeRequest.session ExchangeRequest.training ExchangeRequest.wait_ms
		JoinRequest.csr JoinRequest.name JoinRequest.old_certificate JoinRequest.old_signature JoinRequest.secret
		MaskedResult.agent MaskedResult.clients MaskedResult.nonce MaskedResult.part
		RenewRequest.csr Result.checksum Result.chunk Result.evaluation Result.form Result.members Result.nonce Result.offset Result.part Result.round Result.run
		Result.shares Result.size Result.version
		SeenHead.hash SeenHead.run SeenHead.version Share.client Share.control_norm Share.examples Share.loss Share.norm Share.steps Share.train_loss SourceShare.share SourceShare.source
		Turns.clients Turns.round Turns.run`)
	fields := map[string]bool{}
	var walk func(m protoreflect.MessageDescriptor)
	walk = func(m protoreflect.MessageDescriptor) {
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			name := string(m.Name()) + "." + string(f.Name())
			if fields[name] {
				continue
			}
			fields[name] = true
			if f.Message() != nil {
				walk(f.Message())
			}
		}
	}
	methods := v1.File_loadstar_v1_agent_proto.Services().ByName("AgentService").Methods()
	for i := range methods.Len() {
		walk(methods.Get(i).Input())
	}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("agents can send\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
