package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func (x *x86) mulShapes() []tileShape {
	if x.wide {
		// 24 accumulators keep two FMA units busy in spite of their latency, and a row of B
		// is loaded once for all accumulators.
		return append(append(append(shapes(12, 1), shapes(12, 2)...), shapes(8, 3)...), shapes(6, 4)...)
	}
	return append(shapes(12, 1), shapes(6, 2)...)
}

// rowAddresses returns the memory operands of n rows that are ld bytes apart, and the base
// registers that these operands use. Three rows share a base register, because x86
// addressing can scale ld by 0, 1 and 2.
func (x *x86) rowAddresses(base, ld reg.Register, n int) (rows []operand.Mem, bases []reg.Register) {
	bases = []reg.Register{base}
	var ld3 reg.Register
	for i := range n {
		if i > 0 && i%3 == 0 {
			if ld3 == nil {
				ld3 = x.GP64()
				x.LEAQ(operand.Mem{Base: ld, Index: ld, Scale: 2}, ld3)
			}
			next := x.GP64()
			x.LEAQ(operand.Mem{Base: bases[len(bases)-1], Index: ld3, Scale: 1}, next)
			bases = append(bases, next)
		}
		m := operand.Mem{Base: bases[len(bases)-1]}
		if i%3 > 0 {
			m.Index, m.Scale = ld, uint8(i%3)
		}
		rows = append(rows, m)
	}
	return rows, bases
}

// mulTile generates code for C[rows][vecs·lanes] = start + A·B that repeats for blocks
// tiles, one below the other. The code broadcasts the elements of A and keeps all of C in
// registers.
func (x *x86) mulTile(rows, vecs int) {
	x.begin(fmt.Sprintf("mul%dx%d", rows, vecs), mulDoc(rows, vecs), mulSignature)
	x.mulBody(rows, vecs,
		func(m operand.Mem, v reg.Register) { x.VMOVUPS(m, v) },
		func(v reg.Register, m operand.Mem) { x.VMOVUPS(v, m) })
}

// mulTail generates code for a tile whose rows are one vector, of which it accesses only
// the first lanes.
func (x *x86) mulTail(rows int) {
	x.begin(fmt.Sprintf("mulTail%d", rows), mulDoc(rows, 1)+", of which it touches the first lanes", mulSignature)
	mask := x.laneMask(x.gp("lanes"))
	x.mulBody(rows, 1, mask.load, mask.store)
}

func (x *x86) mulBody(rows, vecs int, load func(operand.Mem, reg.Register), store func(reg.Register, operand.Mem)) {
	c, ldc, rs, cs := x.gp("c"), x.gp("ldc"), x.gp("rs"), x.gp("cs")
	b, ldb, k := x.GP64(), x.gp("ldb"), x.GP64()
	aBlock := x.gp("a")

	acc := make([][]reg.VecVirtual, rows)
	for i := range acc {
		for range vecs {
			acc[i] = append(acc[i], x.vec())
		}
	}
	bytes := 4 * x.lanes

	x.Label("block")
	// The accumulators start with a bias per row, with C itself, or with zero.
	start := x.gp("bias")
	x.TESTQ(start, start)
	x.JZ(operand.LabelRef("unbiased"))
	for i := range acc {
		x.VBROADCASTSS(operand.Mem{Base: start, Disp: 4 * i}, acc[i][0])
		for _, v := range acc[i][1:] {
			x.VMOVAPS(acc[i][0], v)
		}
	}
	x.ADDQ(operand.U8(4*rows), x.paramAddr("bias"))
	x.JMP(operand.LabelRef("multiply"))
	x.Label("unbiased")
	x.Load(x.Param("accumulate"), start)
	x.TESTQ(start, start)
	x.JZ(operand.LabelRef("fromZero"))
	row := x.copyGP(c)
	for i := range acc {
		for j, v := range acc[i] {
			load(operand.Mem{Base: row, Disp: j * bytes}, v)
		}
		if i < rows-1 {
			x.ADDQ(ldc, row)
		}
	}
	x.JMP(operand.LabelRef("multiply"))
	x.Label("fromZero")
	for i := range acc {
		for _, v := range acc[i] {
			x.zero(v)
		}
	}

	x.Label("multiply")
	x.Load(x.Param("b"), b)
	x.Load(x.Param("k"), k)
	aRow, aBases := x.rowAddresses(x.copyGP(aBlock), rs, rows)
	x.Label("next")
	bv := make([]reg.VecVirtual, vecs)
	for j := range bv {
		bv[j] = x.vec()
		load(operand.Mem{Base: b, Disp: j * bytes}, bv[j])
	}
	for i := range acc {
		if vecs == 1 && x.wide {
			x.VFMADD231PS_BCST(aRow[i], bv[0], acc[i][0])
			continue
		}
		a := x.vec()
		x.VBROADCASTSS(aRow[i], a)
		for j := range bv {
			x.VFMADD231PS(bv[j], a, acc[i][j])
		}
	}
	for _, r := range aBases {
		x.ADDQ(cs, r)
	}
	x.ADDQ(ldb, b)
	x.DECQ(k)
	x.JNZ(operand.LabelRef("next"))

	for i := range acc {
		for j, v := range acc[i] {
			store(v, operand.Mem{Base: c, Disp: j * bytes})
		}
		x.ADDQ(ldc, c)
	}
	step := x.GP64()
	x.IMUL3Q(operand.U8(rows), rs, step)
	x.ADDQ(step, aBlock)
	x.nextBlock()
	x.end()
}
