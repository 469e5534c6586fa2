package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// elementwise generates a loop over whole vectors, and masked code for the remaining
// floats.
func (x *x86) elementwise(l loop) {
	p := l.program()
	x.begin(l.name, l.doc, l.signature())
	n := x.gp("n")
	ptr := make([]reg.Register, len(l.streams))
	for i, s := range l.streams {
		ptr[i] = x.gp(s)
	}
	invariants := x.invariants(p, l)
	var rows, ld, slope reg.Register
	if l.rows {
		rows, ld, slope = x.gp("rows"), x.gp("ld"), x.gp("slope")
		x.TESTQ(rows, rows)
		x.JZ(operand.LabelRef("done"))
		x.Label("row")
		x.VBROADCASTSS(operand.Mem{Base: slope}, invariants[p.scalar(0)].(reg.Register))
		x.Load(x.Param("n"), n)
	}
	at := x.GP64()
	x.XORQ(at, at)
	x.SUBQ(operand.U8(x.lanes), n)
	x.JB(operand.LabelRef("tail"))
	x.Label("next")
	address := func(stream int) operand.Mem { return operand.Mem{Base: ptr[stream], Index: at, Scale: 4} }
	x.lower(p, invariants,
		func(s int, v reg.Register) { x.VMOVUPS(address(s), v) },
		func(v reg.Register, s int) { x.VMOVUPS(v, address(s)) })
	x.ADDQ(operand.U8(x.lanes), at)
	x.SUBQ(operand.U8(x.lanes), n)
	x.JAE(operand.LabelRef("next"))
	x.Label("tail")
	x.ADDQ(operand.U8(x.lanes), n)
	x.JZ(operand.LabelRef("end"))
	mask := x.laneMask(n)
	x.lower(p, invariants,
		func(s int, v reg.Register) { mask.load(address(s), v) },
		func(v reg.Register, s int) { mask.store(v, address(s)) })
	x.Label("end")
	if l.rows {
		for _, r := range ptr {
			x.ADDQ(ld, r)
		}
		x.ADDQ(operand.U8(4), slope)
		x.DECQ(rows)
		x.JNZ(operand.LabelRef("row"))
		x.Label("done")
	}
	x.end()
}

// invariants loads the values that are the same in all iterations: scalars into registers,
// and constants too if there are enough registers.
func (x *x86) invariants(p *program, l loop) map[value]operand.Op {
	at := map[value]operand.Op{}
	for v, o := range p.ops {
		switch {
		case o.kind == opScalar && l.rows:
			at[value(v)] = x.vec() // loaded again for each row
		case o.kind == opScalar:
			r := x.vec()
			x.VBROADCASTSS(x.paramAddr(l.scalars[o.stream]), r)
			at[value(v)] = r
		case o.kind == opConst && x.wide:
			bits, low, r := x.GP32(), x.XMM(), x.vec()
			x.MOVL(operand.U32(math.Float32bits(o.imm)), bits)
			x.VMOVD(bits, low)
			x.VBROADCASTSS(low, r)
			at[value(v)] = r
		case o.kind == opConst:
			at[value(v)] = x.constants[o.imm]
		}
	}
	return at
}

// lower generates the instructions of one iteration of the loop: it applies the program to
// one vector of each stream.
func (x *x86) lower(p *program, invariants map[value]operand.Op, load func(stream int, dst reg.Register), store func(src reg.Register, stream int)) {
	last := p.lastUses()
	at := map[value]operand.Op{}
	for v, op := range invariants {
		at[v] = op
	}
	// register returns v in a register, loading a constant from memory.
	register := func(v value) reg.Register {
		if r, ok := at[v].(reg.Register); ok {
			return r
		}
		r := x.vec()
		x.VMOVUPS(at[v], r)
		return r
	}
	inMemory := func(v value) bool { _, ok := at[v].(operand.Mem); return ok }
	for i, o := range p.ops {
		dies := func(v value) bool { return last[v] == i }
		// binary generates dst = a op b; b may be in memory.
		binary := func(f func(...operand.Op), a, b value) {
			r := register(a)
			dst := x.vec()
			f(at[b], r, dst)
			at[value(i)] = dst
		}
		commutative := func(f func(...operand.Op)) {
			if inMemory(o.args[0]) {
				binary(f, o.args[1], o.args[0])
			} else {
				binary(f, o.args[0], o.args[1])
			}
		}
		switch o.kind {
		case opLoad:
			r := x.vec()
			load(o.stream, r)
			at[value(i)] = r
		case opStore:
			store(register(o.args[0]), o.stream)
		case opAdd:
			commutative(x.VADDPS)
		case opMul:
			commutative(x.VMULPS)
		case opSub:
			binary(x.VSUBPS, o.args[0], o.args[1])
		case opDiv:
			binary(x.VDIVPS, o.args[0], o.args[1])
		case opMax:
			binary(x.VMAXPS, o.args[0], o.args[1])
		case opMin:
			binary(x.VMINPS, o.args[0], o.args[1])
		case opSqrt:
			r := x.vec()
			x.VSQRTPS(at[o.args[0]], r)
			at[value(i)] = r
		case opFMA, opFNMA:
			fma231, fma213 := x.VFMADD231PS, x.VFMADD213PS
			if o.kind == opFNMA {
				fma231, fma213 = x.VFNMADD231PS, x.VFNMADD213PS
			}
			a, b, c := o.args[0], o.args[1], o.args[2]
			if inMemory(b) || (!inMemory(a) && !dies(a) && dies(b)) {
				a, b = b, a // a may be in memory, b must be in a register
			}
			switch {
			case dies(c) && c != a && c != b:
				fma231(at[a], register(b), at[c])
				at[value(i)] = at[c]
			case dies(a) && a != b && a != c:
				fma213(at[c], register(b), at[a])
				at[value(i)] = at[a]
			default:
				r := x.vec()
				x.VMOVUPS(at[c], r)
				fma231(at[a], register(b), r)
				at[value(i)] = r
			}
		case opSelect:
			v, pos, neg := register(o.args[0]), register(o.args[1]), register(o.args[2])
			zero, dst := x.vec(), x.vec()
			x.zero(zero)
			const greater = 0x1e // ordered, quiet
			if x.wide {
				k := x.K()
				x.VCMPPS(operand.U8(greater), zero, v, k)
				x.VBLENDMPS(pos, neg, k, dst)
			} else {
				k := x.vec()
				x.VCMPPS(operand.U8(greater), zero, v, k)
				x.VBLENDVPS(k, pos, neg, dst)
			}
			at[value(i)] = dst
		case opPowerTwo:
			r := x.vec()
			x.VPSLLD(operand.U8(23), register(o.args[0]), r)
			x.VPADDD(at[o.args[1]], r, r)
			at[value(i)] = r
		case opScalar, opConst: // loaded before the loop
		default:
			panic(fmt.Sprintf("no instruction for operation %d", o.kind))
		}
	}
}

// fmaPeak generates a loop of independent fused multiply-adds on registers.
func (x *x86) fmaPeak(chains int) {
	x.begin("FMAPeak", peakDoc(chains), "func(n uintptr)")
	n := x.gp("n")
	acc := make([]reg.VecVirtual, chains)
	one := x.vec()
	x.zero(one)
	for i := range acc {
		acc[i] = x.vec()
		x.zero(acc[i])
	}
	x.Label("next")
	for range peakUnroll {
		for _, v := range acc {
			x.VFMADD231PS(one, one, v)
		}
	}
	x.DECQ(n)
	x.JNZ(operand.LabelRef("next"))
	x.end()
}
