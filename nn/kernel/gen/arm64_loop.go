package main

import (
	"fmt"
	"math"
)

// elementwise generates a loop over whole vectors, without a tail.
func (a *neon) elementwise(l loop) {
	p := l.program()
	a.begin(l.name, fmt.Sprintf("%s; n is a multiple of %d", l.doc, neonLanes), l.signature())
	n := a.gp("n")
	ptr := make([]gp, len(l.streams))
	for i, s := range l.streams {
		ptr[i] = a.gp(s)
	}
	at := a.invariants(p, l)
	var rows, gap, slope gp
	if l.rows {
		rows, gap, slope = a.gp("rows"), a.gp("ld"), a.gp("slope")
		a.op("SUB", fmt.Sprintf("%s<<2", n), gap) // the loop itself advances by the length of a row
		a.op("CBZ", rows, "done")
		a.label("row")
		a.op("VLD1R.P", fmt.Sprintf("4(%s)", slope), vecs{at[p.scalar(0)]})
		a.op("MOVD", a.param("n"), n)
	}
	a.op("SUBS", fmt.Sprintf("$%d", neonLanes), n, n)
	a.op("BLO", "end")
	a.label("next")
	a.lower(p, at, ptr)
	a.op("SUBS", fmt.Sprintf("$%d", neonLanes), n, n)
	a.op("BHS", "next")
	a.label("end")
	if l.rows {
		for _, r := range ptr {
			a.op("ADD", gap, r)
		}
		a.again(rows, "row")
		a.label("done")
	}
	a.end()
}

// invariants loads the values that are the same in all iterations into registers.
func (a *neon) invariants(p *program, l loop) map[value]vec {
	at := map[value]vec{}
	number := a.newGP()
	for i, o := range p.ops {
		if !p.invariant(value(i)) {
			continue
		}
		v := a.vec()
		at[value(i)] = v
		switch {
		case o.kind == opConst:
			a.op("MOVW", fmt.Sprintf("$0x%08x", math.Float32bits(o.imm)), number)
			a.op("VDUP", number, v)
		case !l.rows: // with rows, the scalar is loaded for each row
			a.op("FMOVS", a.param(l.scalars[o.stream]), v.low())
			a.op("VDUP", fmt.Sprintf("V%d.S[0]", int(v)), v)
		}
	}
	return at
}

// lower generates the instructions of one iteration of the loop, which applies the program
// to one vector of each stream and advances the pointers in ptr. It adds the registers of
// the
// values to at, which already contains the invariants.
func (a *neon) lower(p *program, at map[value]vec, ptr []gp) {
	last := p.lastUses()
	lastAccess := make([]int, len(ptr))
	for i, o := range p.ops {
		if o.kind == opLoad || o.kind == opStore {
			lastAccess[o.stream] = i
		}
	}
	for i, o := range p.ops {
		if p.invariant(value(i)) {
			continue
		}
		var src vecs
		for _, v := range o.args {
			src = append(src, at[v])
		}
		// access returns the name and the memory operand of a load or store. The last access to a
		// stream advances its pointer.
		access := func(name string) (op, mem string) {
			if lastAccess[o.stream] == i {
				return name + ".P", fmt.Sprintf("%d(%s)", 4*neonLanes, ptr[o.stream])
			}
			return name, fmt.Sprintf("(%s)", ptr[o.stream])
		}
		dst := vec(-1) // a store has no destination register
		switch o.kind {
		case opLoad:
			dst = a.vec()
			op, mem := access("VLD1")
			a.op(op, mem, vecs{dst})
		case opStore:
			op, mem := access("VST1")
			a.op(op, src, mem)
		case opFMA, opFNMA:
			fma := "VFMLA"
			if o.kind == opFNMA {
				fma = "VFMLS"
			}
			if dst = src[2]; last[o.args[2]] != i {
				dst = a.vec()
				a.op("VMOV", src[2].bits(), dst.bits())
			}
			a.op(fma, src[1], src[0], dst)
		case opSelect:
			dst = a.vec()
			a.word(fcmgtZero, dst, src[0])
			a.op("VBSL", src[2].bits(), src[1].bits(), dst.bits())
		case opPowerTwo:
			dst = a.vec()
			a.op("VSHL", "$23", src[0], dst)
			a.op("VADD", src[1], dst, dst)
		default:
			e, ok := lanewise[o.kind]
			if !ok {
				panic(fmt.Sprintf("no instruction for operation %d", o.kind))
			}
			dst = a.vec()
			a.word(e, dst, src...)
		}
		at[value(i)] = dst
		for j, v := range o.args {
			if last[v] == i && src[j] != dst {
				a.freeVec |= 1 << src[j]
			}
		}
	}
}

// fmaPeak generates a loop of independent fused multiply-adds on registers.
func (a *neon) fmaPeak(chains int) {
	a.begin("FMAPeak", peakDoc(chains), "func(n uintptr)")
	n, one, acc := a.gp("n"), a.vec(), a.vecs(chains)
	for _, v := range append(acc, one) {
		a.zero(v)
	}
	a.label("next")
	for range peakUnroll {
		for _, v := range acc {
			a.op("VFMLA", one, one, v)
		}
	}
	a.again(n, "next")
	a.end()
}
