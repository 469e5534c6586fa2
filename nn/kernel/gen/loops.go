package main

// loop is one elementwise kernel: the arrays that it processes in parallel, its scalars,
// and the operations on one vector of each array.
type loop struct {
	name    string
	doc     string
	streams []string // pointer arguments
	scalars []string // float32 arguments
	// rows means that the kernel processes the rows of a matrix and reads one scalar
	// per row from another array.
	rows bool
	body func(p *program)
}

// These are the stream numbers of the four gates of an LSTM.
const (
	zi = iota
	zf
	zg
	zo
)

var elementwise = []loop{
	{
		name:    "gates",
		doc:     "applies the four gates of an LSTM to their pre-activations, in place, and writes the cell state",
		streams: []string{"zi", "zf", "zg", "zo", "cprev", "c"},
		body: func(p *program) {
			// Two sigmoids share a division: 1/a = b/(a·b). The clamp keeps the product
			// finite.
			a, b := sigmoidDenominator(p, p.load(zi)), sigmoidDenominator(p, p.load(zf))
			r := p.div(p.constant(1), p.mul(a, b))
			i, f := p.mul(r, b), p.mul(r, a)
			p.store(zi, i)
			p.store(zf, f)
			g := tanh(p, p.load(zg))
			p.store(zg, g)
			p.store(5, p.fma(f, p.load(4), p.mul(i, g)))
			p.store(zo, p.div(p.constant(1), sigmoidDenominator(p, p.load(zo))))
		},
	},
	{
		// This is a separate loop. As part of the gates' loop, it would double the length of the
		// chain of dependent operations per iteration, which limits the speed.
		name:    "cellOutput",
		doc:     "writes the tanh of the cell state and the hidden state",
		streams: []string{"o", "c", "tc", "h"},
		body: func(p *program) {
			tc := tanh(p, p.load(1))
			p.store(2, tc)
			p.store(3, p.mul(p.load(0), tc))
		},
	},
	{
		name:    "gatesBackward",
		doc:     "turns the gate activations into the gradients of their pre-activations, in place, and carries the cell gradient dc one step back",
		streams: []string{"zi", "zf", "zg", "zo", "cprev", "tc", "dh", "dc"},
		body: func(p *program) {
			one := p.constant(1)
			// slope returns the derivative of the sigmoid in terms of the sigmoid's value,
			// x(1-x).
			slope := func(x value) value { return p.fnma(x, x, x) }
			// tanhSlope returns the derivative of tanh in terms of the value of tanh, 1-x².
			tanhSlope := func(x value) value { return p.fnma(x, x, one) }

			o, dh, tc := p.load(zo), p.load(6), p.load(5)
			dho := p.mul(dh, o)
			dct := p.fma(dho, tanhSlope(tc), p.load(7))
			p.store(zo, p.mul(p.mul(dh, tc), slope(o)))
			f := p.load(zf)
			p.store(7, p.mul(dct, f))
			p.store(zf, p.mul(p.mul(dct, p.load(4)), slope(f)))
			i, g := p.load(zi), p.load(zg)
			p.store(zi, p.mul(p.mul(dct, g), slope(i)))
			p.store(zg, p.mul(p.mul(dct, i), tanhSlope(g)))
		},
	},
	{
		name:    "preluForward",
		doc:     "writes y = max(x,0) + slope·min(x,0)",
		streams: []string{"y", "x"},
		rows:    true,
		body: func(p *program) {
			x, zero := p.load(1), p.constant(0)
			p.store(0, p.fma(p.scalar(0), p.min(zero, x), p.max(zero, x)))
		},
	},
	{
		name:    "preluBackward",
		doc:     "turns dy into dx and writes dy·min(x,0), whose row sums are the slopes' gradient",
		streams: []string{"dy", "x", "product"},
		rows:    true,
		body: func(p *program) {
			dy, x := p.load(0), p.load(1)
			p.store(0, p.selectPositive(x, dy, p.mul(dy, p.scalar(0))))
			p.store(2, p.mul(dy, p.min(p.constant(0), x)))
		},
	},
	{
		name:    "axpy",
		doc:     "adds alpha·x to y",
		streams: []string{"y", "x"},
		scalars: []string{"alpha"},
		body: func(p *program) {
			p.store(0, p.fma(p.load(1), p.scalar(0), p.load(0)))
		},
	},
	{
		name:    "proximal",
		doc:     "adds mu·(w - w0) to grad",
		streams: []string{"grad", "w", "w0"},
		scalars: []string{"mu"},
		body: func(p *program) {
			p.store(0, p.fma(p.sub(p.load(1), p.load(2)), p.scalar(0), p.load(0)))
		},
	},
	{
		name:    "adam",
		doc:     "takes one Adam step; rate and unbias hold the bias corrections",
		streams: []string{"w", "grad", "m", "v"},
		scalars: []string{"beta1", "gain1", "beta2", "gain2", "rate", "unbias", "eps"},
		body: func(p *program) {
			m, v := moments(p)
			den := p.fma(p.sqrt(v), p.scalar(5), p.scalar(6))
			p.store(0, p.fnma(p.div(m, den), p.scalar(4), p.load(0)))
		},
	},
	{
		name:    "amsgrad",
		doc:     "takes one AMSGrad step; vmax keeps the largest bias-corrected second moment",
		streams: []string{"w", "grad", "m", "v", "vmax"},
		scalars: []string{"beta1", "gain1", "beta2", "gain2", "rate", "unbias", "eps"},
		body: func(p *program) {
			m, v := moments(p)
			vmax := p.max(p.load(4), p.mul(v, p.scalar(5)))
			p.store(4, vmax)
			den := p.add(p.sqrt(vmax), p.scalar(6))
			p.store(0, p.fnma(p.div(m, den), p.scalar(4), p.load(0)))
		},
	},
}

// moments updates and stores the two moments, in the same way for Adam and AMSGrad.
func moments(p *program) (m, v value) {
	g := p.load(1)
	m = p.fma(g, p.scalar(1), p.mul(p.load(2), p.scalar(0)))
	p.store(2, m)
	v = p.fma(p.mul(g, g), p.scalar(3), p.mul(p.load(3), p.scalar(2)))
	p.store(3, v)
	return m, v
}

// The exponential is 2^n · 2^r with t = k·x, n = round(t) and r = t - n in [-½, ½], and
// 2^r - 1 = r·P(r). P is the minimax polynomial of degree 5 for (2^r - 1)/r in relative
// error, which is 2.1e-8 with float32 coefficients. Computing 2^r - 1 separately keeps tanh
// accurate to the last bits near zero.
//
// roundMagic is 1.5·2^23: adding it rounds to an integer and leaves that integer
// in the low bits of the sum.
//
// Beyond expClamp, tanh is constant in float32, sigmoid is 1 or below 1e-18, and 2^n is
// still a normal number.
const (
	log2e      = 1.4426950408889634
	roundMagic = 12582912
	expClamp   = 43
)

var exp2Poly = [6]float32{
	0.6931471824645996, 0.24022649228572845, 0.05550357326865196,
	0.009618237614631653, 0.0013390735257416964, 0.00015403512225020677,
}

// exp2 returns s = 2^n and q = 2^r - 1 for n + r = k·x. For NaN, both are NaN.
func exp2(p *program, x value, k float32) (s, q value) {
	x = p.max(p.constant(-expClamp), p.min(p.constant(expClamp), x))
	kc, magic := p.constant(k), p.constant(roundMagic)
	t := p.fma(x, kc, magic)
	r := p.fma(x, kc, p.sub(magic, t))
	s = p.powerOfTwo(t)
	q = p.fma(r, p.constant(exp2Poly[5]), p.constant(exp2Poly[4]))
	for i := 3; i >= 0; i-- {
		q = p.fma(q, r, p.constant(exp2Poly[i]))
	}
	return s, p.mul(q, r)
}

// sigmoidDenominator returns 1 + e^-x, whose reciprocal is the sigmoid of x.
func sigmoidDenominator(p *program, x value) value {
	s, q := exp2(p, x, -log2e)
	return p.add(p.fma(q, s, s), p.constant(1))
}

// tanh returns (1 - e) / (1 + e) with e = e^-2x, computed with 1 - e = (1 - s) - q·s.
func tanh(p *program, x value) value {
	s, q := exp2(p, x, -2*log2e)
	num := p.fnma(q, s, p.sub(p.constant(1), s))
	return p.div(num, p.sub(p.constant(2), num))
}
