package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func (x *x86) dotShapes() []tileShape {
	rows := 3 // 12 accumulators, 3 rows of A and one of B: all 16 registers
	if x.wide {
		rows = 6
	}
	return append(append(shapes(rows, 1), shapes(rows, 4)...), tileShape{1, 8})
}

// dotTile generates C[rows][cols] = start + A·Bᵀ for blocks tiles side by side. The rows of
// A and B are contiguous, and each accumulator contains the partial sums of one element of
// C.
func (x *x86) dotTile(rows, cols int) {
	x.begin(fmt.Sprintf("dot%dx%d", rows, cols), dotDoc(rows, cols), dotSignature)
	lda, ldb := x.gp("lda"), x.gp("ldb")
	x.Label("block")
	acc := make([][]reg.VecVirtual, rows)
	for i := range acc {
		for range cols {
			v := x.vec()
			x.zero(v)
			acc[i] = append(acc[i], v)
		}
	}
	segs, aSegment, bSegment := x.gp("segs"), x.gp("a"), x.gp("b")

	x.Label("segment")
	aRow, aBases := x.rowAddresses(x.copyGP(aSegment), lda, rows)
	bRow, bBases := x.rowAddresses(x.copyGP(bSegment), ldb, cols)
	k := x.gp("k")
	x.SUBQ(operand.U8(x.lanes), k)
	x.JB(operand.LabelRef("tail"))
	x.Label("next")
	a := make([]reg.VecVirtual, rows)
	for i := range a {
		a[i] = x.vec()
		x.VMOVUPS(aRow[i], a[i])
	}
	for j := range cols {
		if rows == 1 {
			x.VFMADD231PS(bRow[j], a[0], acc[0][j])
			continue
		}
		b := x.vec()
		x.VMOVUPS(bRow[j], b)
		for i := range a {
			x.VFMADD231PS(b, a[i], acc[i][j])
		}
	}
	for _, r := range append(aBases, bBases...) {
		x.ADDQ(operand.U8(4*x.lanes), r)
	}
	x.SUBQ(operand.U8(x.lanes), k)
	x.JAE(operand.LabelRef("next"))

	x.Label("tail")
	x.ADDQ(operand.U8(x.lanes), k)
	x.JZ(operand.LabelRef("endSegment"))
	mask := x.laneMask(k)
	for j := range cols {
		b := x.vec()
		mask.load(bRow[j], b)
		for i := range a {
			av := x.vec()
			mask.load(aRow[i], av)
			x.VFMADD231PS(b, av, acc[i][j])
		}
	}
	x.Label("endSegment")
	step := x.gp("aseg")
	x.ADDQ(step, aSegment)
	x.Load(x.Param("bseg"), step)
	x.ADDQ(step, bSegment)
	x.DECQ(segs)
	x.JNZ(operand.LabelRef("segment"))

	c, ldc, accumulate := x.gp("c"), x.gp("ldc"), x.gp("accumulate")
	for i := range acc {
		for j := 0; j < cols; j += 4 {
			dst := operand.Mem{Base: c, Disp: 4 * j}
			label := fmt.Sprintf("plain%d_%d", i, j)
			var sum reg.Register
			if cols == 1 {
				sum = x.sum1(acc[i][0])
			} else {
				sum = x.sum4(acc[i][j : j+4])
			}
			x.TESTQ(accumulate, accumulate)
			x.JZ(operand.LabelRef(label))
			if cols == 1 {
				x.VADDSS(dst, sum, sum)
			} else {
				x.VADDPS(dst, sum, sum)
			}
			x.Label(label)
			if cols == 1 {
				x.VMOVSS(sum, dst)
			} else {
				x.VMOVUPS(sum, dst)
			}
		}
		if i < rows-1 {
			x.ADDQ(ldc, c)
		}
	}
	x.ADDQ(operand.U8(4*cols), x.paramAddr("c"))
	next := x.GP64()
	x.IMUL3Q(operand.U8(cols), ldb, next)
	x.ADDQ(next, x.paramAddr("b"))
	x.nextBlock()
	x.end()
}

// transpose8 generates the transposition of 8 rows of src, in blocks of 8 columns.
func (x *x86) transpose8() {
	x.begin("transpose8", "transposes 8 rows of blocks·8 floats", transposeSignature)
	dst, ldd, src, lds := x.gp("dst"), x.gp("ldd"), x.gp("src"), x.gp("lds")
	from, bases := x.rowAddresses(src, lds, 8)
	x.Label("block")
	rows := make([]reg.VecVirtual, 8)
	for i := range rows {
		rows[i] = x.vec()
		x.VMOVUPS(from[i], rows[i])
	}
	// Exchange pairs of lanes, then pairs of pairs, within 128-bit halves. Then exchange
	// the halves.
	pairs := func(in []reg.VecVirtual, apart int, lo, hi func(a, b, d operand.Op)) []reg.VecVirtual {
		out := make([]reg.VecVirtual, 8)
		for i := 0; i < 8; i++ {
			if i&apart != 0 {
				continue
			}
			out[i], out[i+apart] = x.vec(), x.vec()
			lo(in[i+apart], in[i], out[i])
			hi(in[i+apart], in[i], out[i+apart])
		}
		return out
	}
	rows = pairs(rows, 1,
		func(a, b, d operand.Op) { x.VUNPCKLPS(a, b, d) },
		func(a, b, d operand.Op) { x.VUNPCKHPS(a, b, d) })
	rows = pairs(rows, 2,
		func(a, b, d operand.Op) { x.VUNPCKLPD(a, b, d) },
		func(a, b, d operand.Op) { x.VUNPCKHPD(a, b, d) })
	rows = pairs(rows, 4,
		func(a, b, d operand.Op) { x.VPERM2F128(operand.U8(0x20), a, b, d) },
		func(a, b, d operand.Op) { x.VPERM2F128(operand.U8(0x31), a, b, d) })
	for i := range rows {
		// Unpacking swaps columns 1 and 2, and 5 and 6.
		x.VMOVUPS(rows[i&4|i&1<<1|i&2>>1], operand.Mem{Base: dst})
		x.ADDQ(ldd, dst)
	}
	for _, b := range bases {
		x.ADDQ(operand.U8(32), b)
	}
	x.nextBlock()
	x.end()
}

// sum4 adds the lanes of each of four registers: lane j of the result is the sum
// of acc[j].
func (x *x86) sum4(acc []reg.VecVirtual) reg.Register {
	fold := func(a, b reg.VecVirtual, lo, hi func(...operand.Op)) reg.VecVirtual {
		l, h := x.vec(), x.vec()
		lo(b, a, l)
		hi(b, a, h)
		x.VADDPS(l, h, l)
		return l
	}
	ab := fold(acc[0], acc[1], x.VUNPCKLPS, x.VUNPCKHPS)
	cd := fold(acc[2], acc[3], x.VUNPCKLPS, x.VUNPCKHPS)
	return x.foldQuarters(fold(ab, cd, x.VUNPCKLPD, x.VUNPCKHPD))
}

// sum1 adds the lanes of one register into lane 0.
func (x *x86) sum1(acc reg.VecVirtual) reg.Register {
	v, t := x.foldQuarters(acc), x.XMM()
	x.VMOVHLPS(v, v, t)
	x.VADDPS(t, v, v)
	x.VMOVSHDUP(v, t)
	x.VADDSS(t, v, v)
	return v
}

// foldQuarters adds the 128-bit parts of v: four parts with AVX-512, two with AVX2.
func (x *x86) foldQuarters(v reg.VecVirtual) reg.Register {
	extract := x.VEXTRACTF128
	if x.wide {
		h := x.YMM()
		x.VEXTRACTF64X4(operand.U8(1), v, h)
		x.VADDPS(h, v.AsY(), h)
		v = h
		// This instruction can access all 32 registers.
		extract = func(i, y, x1 operand.Op) { x.VEXTRACTF32X4(i, y, x1) }
	}
	h := x.XMM()
	extract(operand.U8(1), v.AsY(), h)
	x.VADDPS(h, v.AsX(), h)
	return h
}
