package clientopt

import (
	"testing"

	"loadstar/fed"

	"pgregory.net/rapid"
)

func TestScaffold(t *testing.T) {
	o := &Scaffold{Kernel: kernels(t), Rate: Rate{Base: 0.5}}
	// The client takes two steps on the shared weights 1 and 2 with gradient 1, and on the
	// personal weight 4 between them with gradient 2. With c = (0.5, -1) and c_i = (0.25, 0):
	//   1 - 2·0.5·(1 - 0.25 + 0.5) = -0.25
	//   2 - 2·0.5·(1 - 0 - 1) = 2
	//   4 - 2·0.5·2 = 2
	//   c_i' = (0.25 - 0.5 + (1+0.25)/(2·0.5), 0 + 1 + 0) = (1, 1)
	// The new control variates equal the gradients, as they should. c_i' - c_i = (0.75, 1).
	tr := turn(o, []float32{1, 4, 2}, fed.Span{Lo: 0, Hi: 1}, fed.Span{Lo: 2, Hi: 3})
	tr.First = false
	copy(tr.Task.Control, []float32{0.5, -1})
	copy(tr.Kept, []float32{0.25, 0})
	g := []float32{1, 2, 1}
	run(o, tr, g, g)
	check(t, "weights", tr.W, -0.25, 2, 2)
	check(t, "kept", tr.Kept, 1, 1)
	check(t, "sent", tr.Control, 0.75, 1)

	// The first round starts from c_i = c, whatever Kept contains, and therefore equals
	// SGD:
	//   w = (1 - 1, 4 - 2, 2 - 1)
	//   c_i' = (1-0)/(2·0.5) = 1, (2-1)/(2·0.5) = 1; c_i' - c = (0.5, 2)
	tr = turn(o, []float32{1, 4, 2}, fed.Span{Lo: 0, Hi: 1}, fed.Span{Lo: 2, Hi: 3})
	copy(tr.Task.Control, []float32{0.5, -1})
	copy(tr.Kept, []float32{7, 7})
	run(o, tr, g, g)
	check(t, "first weights", tr.W, 0, 2, 1)
	check(t, "first kept", tr.Kept, 1, 1)
	check(t, "first sent", tr.Control, 0.5, 2)
}

func TestScaffoldWithoutRate(t *testing.T) {
	for _, first := range []bool{true, false} {
		o := &Scaffold{Kernel: kernels(t)}
		tr := turn(o, []float32{1}, fed.Span{Lo: 0, Hi: 1})
		tr.First = first
		tr.Task.Control[0], tr.Kept[0], tr.Control[0] = 0.5, 0.5, 9
		run(o, tr, []float32{1})
		check(t, "weights", tr.W, 1)
		check(t, "kept", tr.Kept, 0.5)
		check(t, "sent", tr.Control, 0)
	}
}

func TestScaffoldWithoutControl(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	o := &Scaffold{Kernel: kernels(t)}
	tr := turn(o, []float32{1}, fed.Span{Lo: 0, Hi: 1})
	tr.Task.Control = nil
	o.Begin(tr)
}

// In a client's first round c_i equals c, so Scaffold takes the same steps as SGD.
func TestScaffoldWithoutDriftIsSGD(t *testing.T) {
	k := kernels(t)
	rapid.Check(t, func(rt *rapid.T) {
		v := vectors(rt, 3)
		span := fed.Span{Lo: 0, Hi: len(v[0])}
		sgd := &SGD{Kernel: k, Rate: Rate{Base: 0.1}}
		scaffold := &Scaffold{Kernel: k, Rate: Rate{Base: 0.1}}
		a, b := turn(sgd, v[0], span), turn(scaffold, v[0], span)
		run(sgd, a, v[1:]...)
		run(scaffold, b, v[1:]...)
		if !sameBits(a.W, b.W) {
			rt.Fatalf("sgd %v, scaffold %v", a.W, b.W)
		}
	})
}
