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

// lower generates the instructions of one iteration of the loop, which applies the program
// to one vector of each stream.
func (x *x86) lower(p *program, invariants map[value]operand.Op, load func(stream int, dst reg.Register), store func(src reg.Register, stream int)) {
	l := &lowering{x86: x, last: p.lastUses(), at: map[value]operand.Op{}}
	for v, op := range invariants {
		l.at[v] = op
	}
	for i, o := range p.ops {
		switch o.kind {
		case opLoad:
			r := x.vec()
			load(o.stream, r)
			l.at[value(i)] = r
		case opStore:
			store(l.register(o.args[0]), o.stream)
		case opScalar, opConst: // loaded before the loop
		default:
			l.at[value(i)] = l.operation(i, o.kind, o.args)
		}
	}
}

// lowering records where the values of a program are stored.
type lowering struct {
	*x86
	last []int // the operation that uses a value last
	at   map[value]operand.Op
}

// register returns v in a register, loading a constant from memory.
func (l *lowering) register(v value) reg.Register {
	if r, ok := l.at[v].(reg.Register); ok {
		return r
	}
	r := l.vec()
	l.VMOVUPS(l.at[v], r)
	return r
}

func (l *lowering) inMemory(v value) bool {
	_, ok := l.at[v].(operand.Mem)
	return ok
}

// operation generates operation i and returns the location of its value.
func (l *lowering) operation(i int, kind opKind, args []value) operand.Op {
	switch kind {
	case opAdd:
		return l.commutative(l.VADDPS, args)
	case opMul:
		return l.commutative(l.VMULPS, args)
	case opSub:
		return l.binary(l.VSUBPS, args[0], args[1])
	case opDiv:
		return l.binary(l.VDIVPS, args[0], args[1])
	case opMax:
		return l.binary(l.VMAXPS, args[0], args[1])
	case opMin:
		return l.binary(l.VMINPS, args[0], args[1])
	case opSqrt:
		r := l.vec()
		l.VSQRTPS(l.at[args[0]], r)
		return r
	case opFMA:
		return l.fma(i, l.VFMADD231PS, l.VFMADD213PS, args)
	case opFNMA:
		return l.fma(i, l.VFNMADD231PS, l.VFNMADD213PS, args)
	case opSelect:
		return l.choose(args)
	case opPowerTwo:
		r := l.vec()
		l.VPSLLD(operand.U8(23), l.register(args[0]), r)
		l.VPADDD(l.at[args[1]], r, r)
		return r
	}
	panic(fmt.Sprintf("no instruction for operation %d", kind))
}

// binary generates a op b; b may be in memory.
func (l *lowering) binary(f func(...operand.Op), a, b value) operand.Op {
	r := l.register(a)
	dst := l.vec()
	f(l.at[b], r, dst)
	return dst
}

func (l *lowering) commutative(f func(...operand.Op), args []value) operand.Op {
	if l.inMemory(args[0]) {
		return l.binary(f, args[1], args[0])
	}
	return l.binary(f, args[0], args[1])
}

// fma generates a fused multiply-add. It overwrites an argument that is not used any more.
func (l *lowering) fma(i int, fma231, fma213 func(...operand.Op), args []value) operand.Op {
	dies := func(v value) bool { return l.last[v] == i }
	a, b, c := args[0], args[1], args[2]
	if l.inMemory(b) || (!l.inMemory(a) && !dies(a) && dies(b)) {
		a, b = b, a // a may be in memory, b must be in a register
	}
	switch {
	case dies(c) && c != a && c != b:
		fma231(l.at[a], l.register(b), l.at[c])
		return l.at[c]
	case dies(a) && a != b && a != c:
		fma213(l.at[c], l.register(b), l.at[a])
		return l.at[a]
	}
	r := l.vec()
	l.VMOVUPS(l.at[c], r)
	fma231(l.at[a], l.register(b), r)
	return r
}

// choose generates the second argument where the first is positive, and the third elsewhere.
func (l *lowering) choose(args []value) operand.Op {
	v, pos, neg := l.register(args[0]), l.register(args[1]), l.register(args[2])
	zero, dst := l.vec(), l.vec()
	l.zero(zero)
	const greater = 0x1e // ordered, quiet
	if l.wide {
		k := l.K()
		l.VCMPPS(operand.U8(greater), zero, v, k)
		l.VBLENDMPS(pos, neg, k, dst)
	} else {
		k := l.vec()
		l.VCMPPS(operand.U8(greater), zero, v, k)
		l.VBLENDVPS(k, pos, neg, dst)
	}
	return dst
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
