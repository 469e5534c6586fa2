package mask

import (
	"encoding/hex"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func known() (Key, Context) {
	var k Key
	for i := range k {
		k[i] = byte(i)
	}
	terms := Terms{Identity: [32]byte{1}, Number: 9, Least: 20, Quorum: 700, Cell: 100, Age: 86400, Invited: true, PlanLeast: 30, PlanQuorum: 800, Check: "norm", Robust: "none", Keepers: [][32]byte{{1}, {2}}}
	return k, Context{
		Fleet: "f", Run: "r", Agent: "a", Round: 1, Version: 2, Plan: "p", Weights: "w", Control: "", Part: 3, Clients: 4, Length: 5, Day: 6, Homes: 8,
		Terms: terms.Hash(), Limits: Limits(Clip{Norm: 1, Control: 2, Loss: 3, Coordinate: 4, Examples: 5}, []Block{{4, 1 << 40}, {1, 7}}),
	}
}

// TestKnown compares the results with those of Python's hmac and hashlib modules and of openssl
// enc.
func TestKnown(t *testing.T) {
	k, c := known()
	s := k.Seed(&c, Nonce{7})
	v := make([]uint64, 9000)
	s.Add(v)
	next, mac, products := k.Next(), k.MAC([]byte("m")), s.Products(v)
	for _, x := range []struct {
		name, want string
		got        []byte
	}{
		{"terms", "63e8cc2cab9ab60dbeb1e96defe18c7e459518b1fe485f761313bc6ba8fc74e7", c.Terms[:]},
		{"limits", "5b8abf20454880b502607752a0ac201de7aa9171fb8e98764f12fa180cc64321", c.Limits[:]},
		{"seed", "8bf231a3cb3355e872fe9326bf0def25d2e244f74f62a824448da5bf15fd795d", s[:]},
		{"next", "a2db35b14b7449e7c44cbf6276b11564f592b550b2d71f101dc661b2dac0aed0", next[:]},
		{"mac", "c0afad08fb546de3fcbb730dd04c9d811653fd1e32137b2c5141d3bd1b305aab", mac[:]},
	} {
		if got := hex.EncodeToString(x.got); got != x.want {
			t.Errorf("%s: got %s, want %s", x.name, got, x.want)
		}
	}
	if v[0] != 0xe7ee0e4e28c72685 || v[4096] != 0xd7298614b7c0be2a || v[8999] != 0x2c31a52ff597fcc0 {
		t.Errorf("mask: %#x, %#x, %#x", v[0], v[4096], v[8999])
	}
	if products[0] != 0xdf01cb51b635c6e6 || products[31] != 0x8c3e7a6e9bf048aa {
		t.Errorf("products: %#x, %#x", products[0], products[31])
	}
	s.Sub(v)
	for i, x := range v {
		if x != 0 {
			t.Fatalf("number %d is %#x after Sub", i, x)
		}
	}
}

// TestContextMatters checks that a change of any field changes the seed. Moving a character
// from one string to the next must also change it.
func TestContextMatters(t *testing.T) {
	k, c := known()
	seen := map[Seed]string{k.Seed(&c, Nonce{7}): "as it is"}
	try := func(name string, change func(c *Context)) {
		changed := c
		change(&changed)
		s := k.Seed(&changed, Nonce{7})
		if other, twice := seen[s]; twice {
			t.Errorf("%s has the seed of %s", name, other)
		}
		seen[s] = name
	}
	try("fleet", func(c *Context) { c.Fleet = "g" })
	try("run", func(c *Context) { c.Run = "s" })
	try("agent", func(c *Context) { c.Agent = "b" })
	try("moved", func(c *Context) { c.Fleet, c.Run = "fr", "" })
	try("round", func(c *Context) { c.Round++ })
	try("version", func(c *Context) { c.Version++ })
	try("plan", func(c *Context) { c.Plan = "q" })
	try("weights", func(c *Context) { c.Weights = "x" })
	try("control", func(c *Context) { c.Control = "x" })
	try("part", func(c *Context) { c.Part++ })
	try("clients", func(c *Context) { c.Clients++ })
	try("length", func(c *Context) { c.Length++ })
	try("day", func(c *Context) { c.Day++ })
	try("homes", func(c *Context) { c.Homes++ })
	try("terms", func(c *Context) { c.Terms[31]++ })
	try("limits", func(c *Context) { c.Limits[31]++ })
	if s := k.Seed(&c, Nonce{8}); seen[s] != "" {
		t.Error("the nonce does not matter")
	}
	next := k.Next()
	if s := next.Seed(&c, Nonce{7}); seen[s] != "" {
		t.Error("the key does not matter")
	}
}

// TestTermsMatter checks that a change of any term changes the hash.
func TestTermsMatter(t *testing.T) {
	seen := map[[32]byte]bool{}
	for _, x := range []Terms{
		{},
		{Identity: [32]byte{1}},
		{Number: 1},
		{Least: 1},
		{Quorum: 1},
		{Cell: 1},
		{Age: 1},
		{Invited: true},
		{PlanLeast: 1},
		{PlanQuorum: 1},
		{Check: "norm"},
		{Robust: "norm"},
		{Keepers: [][32]byte{{}}},
		{Keepers: [][32]byte{{1}}},
		{Keepers: [][32]byte{{}, {}}},
	} {
		if h := x.Hash(); seen[h] {
			t.Errorf("%+v has the hash of other terms", x)
		} else {
			seen[h] = true
		}
	}
	for _, x := range []struct {
		clip   Clip
		blocks []Block
	}{
		{Clip{}, nil},
		{Clip{}, []Block{{}}},
		{Clip{}, []Block{{1, 2}}},
		{Clip{}, []Block{{2, 1}}},
		{Clip{Norm: 1}, nil},
		{Clip{Control: 1}, nil},
		{Clip{Loss: 1}, nil},
		{Clip{Coordinate: 1}, nil},
		{Clip{Coordinate: 1e-300}, nil},
		{Clip{Examples: 1}, nil},
	} {
		if h := Limits(x.clip, x.blocks); seen[h] {
			t.Errorf("%+v have the hash of others", x)
		} else {
			seen[h] = true
		}
	}
}

// TestProducts compares the results with products computed one by one, and checks that the
// products of a sum are the sums of the products.
func TestProducts(t *testing.T) {
	s, rng := Seed{1}, rand.New(rand.NewPCG(1, 2))
	a, b := make([]uint64, 10000), make([]uint64, 10000)
	for i := range a {
		a[i], b[i] = rng.Uint64(), rng.Uint64()
	}
	ofA, ofB := s.Products(a), s.Products(b)
	for i := range a {
		one := make([]uint64, i+1)
		one[i] = 1
		if i < 3 || i > 9997 || i == chunk/8 {
			unit := s.Products(one)
			for _, x := range unit {
				if x != 0 && x != 1 && x != ^uint64(0) {
					t.Fatalf("a random vector has %#x", x)
				}
			}
		}
		a[i] += b[i]
	}
	for j, x := range s.Products(a) {
		if x != ofA[j]+ofB[j] {
			t.Fatalf("product %d of a sum is not the sum of the products", j)
		}
	}
}

// TestNorm checks that the estimate is correct on average, and that its error is as large as
// expected.
func TestNorm(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var sum, squares float64
	const tries = 400
	v := make([]uint64, 3000)
	for try := range tries {
		var norm float64
		for i := range v {
			x := math.Round(rng.NormFloat64() * 1e9)
			norm += x * x
			v[i] = uint64(int64(x))
		}
		s := Seed{byte(try), byte(try >> 8), 9}
		p := s.Products(v)
		ratio := Norm(&p) / math.Sqrt(norm)
		sum, squares = sum+ratio, squares+ratio*ratio
	}
	mean := sum / tries
	deviation := math.Sqrt(squares/tries - mean*mean)
	if mean < 0.97 || mean > 1.01 || deviation < 0.10 || deviation > 0.15 {
		t.Errorf("the estimate is %.3f of the norm on average, off by %.3f", mean, deviation)
	}
}

func TestDay(t *testing.T) {
	for s, want := range map[int64]int64{0: 0, 86399: 0, 86400: 1, -1: -1, -86400: -1, -86401: -2} {
		if got := Day(time.Unix(s, 0)); got != want {
			t.Errorf("%d s: day %d, want %d", s, got, want)
		}
	}
}

func TestRandom(t *testing.T) {
	a, b := NewKey(), NewKey()
	c, d := NewNonce(), NewNonce()
	if a == b || c == d {
		t.Error("keys or nonces repeat")
	}
}

// BenchmarkMask uses the vector lengths of the models dense and bose2023.
func BenchmarkMask(b *testing.B) {
	k, c := known()
	for name, length := range map[string]int{"dense": 26721, "bose2023": 42181} {
		b.Run(name, func(b *testing.B) {
			v := make([]uint64, length)
			b.ReportAllocs()
			for b.Loop() {
				s := k.Seed(&c, Nonce{7})
				s.Add(v)
			}
		})
	}
}

func BenchmarkProducts(b *testing.B) {
	s := Seed{1}
	v := make([]uint64, 26721)
	s.Add(v)
	for b.Loop() {
		s.Products(v)
	}
}
