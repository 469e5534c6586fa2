package kernel

import "math"

// This file contains the portable versions of the loops. They run on CPUs that no assembly
// set supports, and tests compare the assembly sets with them. They use the same formulas
// as the assembly, so only rounding differs.

func mulPortable(m, n, k int, a []float32, rs, cs int, b []float32, ldb int, c []float32, ldc int, start Start) {
	for i := range m {
		row := c[i*ldc : i*ldc+n]
		switch {
		case start.bias != nil:
			for j := range row {
				row[j] = start.bias[i]
			}
		case !start.accumulate:
			clear(row)
		}
	}
	if k <= 0 {
		return // A and B may be empty
	}
	i := 0
	for ; i+4 <= m; i += 4 {
		j := 0
		for ; j+2 <= n; j += 2 {
			mul4x2(k, a[i*rs:], rs, cs, b[j:], ldb, c[i*ldc+j:], ldc)
		}
		for ; j < n; j++ {
			for r := i; r < i+4; r++ {
				mulElement(k, a[r*rs:], cs, b[j:], ldb, &c[r*ldc+j])
			}
		}
	}
	for ; i < m; i++ {
		for j := range n {
			mulElement(k, a[i*rs:], cs, b[j:], ldb, &c[i*ldc+j])
		}
	}
}

// mul4x2 adds the product of four rows of A and two columns of B to C. It keeps the eight
// sums in registers.
func mul4x2(k int, a []float32, rs, cs int, b []float32, ldb int, c []float32, ldc int) {
	c0, c1, c2, c3 := c[0:2], c[ldc:ldc+2], c[2*ldc:2*ldc+2], c[3*ldc:3*ldc+2]
	c00, c01, c10, c11 := c0[0], c0[1], c1[0], c1[1]
	c20, c21, c30, c31 := c2[0], c2[1], c3[0], c3[1]
	for l := range k {
		p := b[l*ldb : l*ldb+2]
		b0, b1 := p[0], p[1]
		x := a[l*cs]
		c00 += x * b0
		c01 += x * b1
		x = a[l*cs+rs]
		c10 += x * b0
		c11 += x * b1
		x = a[l*cs+2*rs]
		c20 += x * b0
		c21 += x * b1
		x = a[l*cs+3*rs]
		c30 += x * b0
		c31 += x * b1
	}
	c0[0], c0[1], c1[0], c1[1] = c00, c01, c10, c11
	c2[0], c2[1], c3[0], c3[1] = c20, c21, c30, c31
}

func mulElement(k int, a []float32, cs int, b []float32, ldb int, c *float32) {
	sum := *c
	for l := range k {
		sum += a[l*cs] * b[l*ldb]
	}
	*c = sum
}

func dotPortable(m, n, k, segs int, a []float32, lda, aseg int, b []float32, ldb, bseg int, c []float32, ldc int, accumulate bool) {
	for i := range m {
		row := c[i*ldc : i*ldc+n]
		if !accumulate {
			clear(row)
		}
		for t := range segs {
			x := a[t*aseg+i*lda:][:k]
			j := 0
			for ; j+4 <= n; j += 4 {
				at := b[t*bseg+j*ldb:]
				y0, y1, y2, y3 := at[:k], at[ldb:][:k], at[2*ldb:][:k], at[3*ldb:][:k]
				var s0, s1, s2, s3 float32
				for l, v := range x {
					s0 += v * y0[l]
					s1 += v * y1[l]
					s2 += v * y2[l]
					s3 += v * y3[l]
				}
				row[j] += s0
				row[j+1] += s1
				row[j+2] += s2
				row[j+3] += s3
			}
			for ; j < n; j++ {
				var sum float32
				for l, v := range b[t*bseg+j*ldb:][:k] {
					sum += x[l] * v
				}
				row[j] += sum
			}
		}
	}
}

func transposePortable(rows, cols int, src []float32, lds int, dst []float32, ldd int) {
	i := 0
	for ; i+4 <= rows; i += 4 {
		at := src[i*lds:]
		s0, s1, s2, s3 := at[:cols], at[lds:][:cols], at[2*lds:][:cols], at[3*lds:][:cols]
		for j, v := range s0 {
			d := dst[j*ldd+i:][:4]
			d[0], d[1], d[2], d[3] = v, s1[j], s2[j], s3[j]
		}
	}
	for ; i < rows; i++ {
		for j, v := range src[i*lds:][:cols] {
			dst[j*ldd+i] = v
		}
	}
}

func gatesForwardPortable(zi, zf, zg, zo, cprev, c, tc, h []float32) {
	for j := range h {
		a, b := sigmoidDenominator(zi[j]), sigmoidDenominator(zf[j])
		r := 1 / (a * b)
		i, f, g, o := r*b, r*a, tanh(zg[j]), 1/sigmoidDenominator(zo[j])
		zi[j], zf[j], zg[j], zo[j] = i, f, g, o
		c[j] = f*cprev[j] + i*g
		tc[j] = tanh(c[j])
		h[j] = o * tc[j]
	}
}

func gatesBackwardPortable(zi, zf, zg, zo, cprev, tc, dh, dc []float32) {
	for j := range dh {
		i, f, g, o, t := zi[j], zf[j], zg[j], zo[j], tc[j]
		dct := dc[j] + dh[j]*o*(1-t*t)
		zi[j] = dct * g * (i - i*i)
		zf[j] = dct * cprev[j] * (f - f*f)
		zg[j] = dct * i * (1 - g*g)
		zo[j] = dh[j] * t * (o - o*o)
		dc[j] = dct * f
	}
}

// preluForwardPortable and preluBackwardPortable process the columns from first to n.
func preluForwardPortable(y, x, slope []float32, first, n int) {
	for r, a := range slope {
		for j := r*n + first; j < (r+1)*n; j++ {
			if v := x[j]; v > 0 {
				y[j] = v
			} else {
				y[j] = a * v
			}
		}
	}
}

func preluBackwardPortable(dy, x, product, slope []float32, first, n int) {
	for r, a := range slope {
		for j := r*n + first; j < (r+1)*n; j++ {
			d := dy[j]
			if v := x[j]; v > 0 {
				product[j] = d * 0
			} else {
				product[j] = d * v
				dy[j] = d * a
			}
		}
	}
}

func axpyPortable(y, x []float32, alpha float32) {
	for i := range y {
		y[i] += alpha * x[i]
	}
}

func proximalPortable(g, w, w0 []float32, mu float32) {
	for i := range g {
		g[i] += mu * (w[i] - w0[i])
	}
}

func adamPortable(w, g, m, v []float32, c coefficients) {
	for i := range w {
		m[i] = c.beta1*m[i] + c.gain1*g[i]
		v[i] = c.beta2*v[i] + c.gain2*(g[i]*g[i])
		w[i] -= c.rate * (m[i] / (sqrt(v[i])*c.unbias + c.eps))
	}
}

func amsgradPortable(w, g, m, v, vmax []float32, c coefficients) {
	for i := range w {
		m[i] = c.beta1*m[i] + c.gain1*g[i]
		v[i] = c.beta2*v[i] + c.gain2*(g[i]*g[i])
		vmax[i] = max(vmax[i], v[i]*c.unbias)
		w[i] -= c.rate * (m[i] / (sqrt(vmax[i]) + c.eps))
	}
}

func sqrt(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// The constants of the exponential are the same as in gen/loops.go, which explains them.
const (
	log2e      = 1.4426950408889634
	roundMagic = 12582912
	expClamp   = 43
)

// exp2 returns s = 2^n and q = 2^r - 1 for n + r = k·x.
func exp2(x float32, k float64) (s, q float32) {
	x = min(max(x, -expClamp), expClamp)
	t := float64(x) * k
	whole := float32(t) + roundMagic
	r := float32(t - float64(whole-roundMagic))
	s = math.Float32frombits(math.Float32bits(whole)<<23 + math.Float32bits(1))
	q = 0.00015403512225020677
	q = q*r + 0.0013390735257416964
	q = q*r + 0.009618237614631653
	q = q*r + 0.05550357326865196
	q = q*r + 0.24022649228572845
	q = q*r + 0.6931471824645996
	return s, q * r
}

func sigmoidDenominator(x float32) float32 {
	s, q := exp2(x, -log2e)
	return q*s + s + 1
}

func tanh(x float32) float32 {
	s, q := exp2(x, -2*log2e)
	num := (1 - s) - q*s
	return num / (2 - num)
}

// peakPortable runs n rounds of eight independent chains of multiply-adds.
func peakPortable(n int) (flops int) {
	const x = float32(0.5)
	var a, b, c, d, e, f, g, h float32
	for range n {
		a = a*x + x
		b = b*x + x
		c = c*x + x
		d = d*x + x
		e = e*x + x
		f = f*x + x
		g = g*x + x
		h = h*x + x
	}
	if a+b+c+d+e+f+g+h < 0 {
		return 0 // never happens, but keeps the compiler from removing the loop
	}
	return n * 16
}
