package main

import "slices"

// program is the straight-line body of an elementwise loop, for one vector of each stream.
// Values are numbered in order of definition and assigned once, so a backend can find the
// last use of a value and reuse its register afterwards.
type program struct {
	ops []op
}

type value int

type opKind int

const (
	opLoad   opKind = iota // from stream
	opScalar               // argument number stream, in all lanes
	opConst                // imm, in all lanes
	opStore                // args[0] to stream
	opAdd
	opSub // args[0] - args[1]
	opMul
	opDiv // args[0] / args[1]
	opSqrt
	opMax      // the second operand if either is NaN
	opMin      // the second operand if either is NaN
	opFMA      // args[0]·args[1] + args[2], rounded once
	opFNMA     // args[2] - args[0]·args[1], rounded once
	opSelect   // args[0] > 0 ? args[1] : args[2]
	opPowerTwo // 2^n for args[0] = n + roundMagic; args[1] is the constant 1
)

type op struct {
	kind   opKind
	args   []value
	stream int
	imm    float32
}

func (p *program) emit(o op) value {
	p.ops = append(p.ops, o)
	return value(len(p.ops) - 1)
}

func (p *program) load(stream int) value { return p.emit(op{kind: opLoad, stream: stream}) }
func (p *program) store(stream int, v value) {
	p.emit(op{kind: opStore, stream: stream, args: []value{v}})
}

// scalar returns argument number i of the kernel in all lanes.
func (p *program) scalar(i int) value { return p.once(op{kind: opScalar, stream: i}) }

// constant returns c in all lanes.
func (p *program) constant(c float32) value { return p.once(op{kind: opConst, imm: c}) }

// once defines a loop-invariant value, or returns its existing definition.
func (p *program) once(o op) value {
	i := slices.IndexFunc(p.ops, func(q op) bool { return q.kind == o.kind && q.stream == o.stream && q.imm == o.imm })
	if i >= 0 {
		return value(i)
	}
	return p.emit(o)
}

func (p *program) add(a, b value) value    { return p.emit(op{kind: opAdd, args: []value{a, b}}) }
func (p *program) sub(a, b value) value    { return p.emit(op{kind: opSub, args: []value{a, b}}) }
func (p *program) mul(a, b value) value    { return p.emit(op{kind: opMul, args: []value{a, b}}) }
func (p *program) div(a, b value) value    { return p.emit(op{kind: opDiv, args: []value{a, b}}) }
func (p *program) sqrt(a value) value      { return p.emit(op{kind: opSqrt, args: []value{a}}) }
func (p *program) max(a, b value) value    { return p.emit(op{kind: opMax, args: []value{a, b}}) }
func (p *program) min(a, b value) value    { return p.emit(op{kind: opMin, args: []value{a, b}}) }
func (p *program) fma(a, b, c value) value { return p.emit(op{kind: opFMA, args: []value{a, b, c}}) }

func (p *program) fnma(a, b, c value) value { return p.emit(op{kind: opFNMA, args: []value{a, b, c}}) }

func (p *program) selectPositive(x, pos, neg value) value {
	return p.emit(op{kind: opSelect, args: []value{x, pos, neg}})
}

func (p *program) powerOfTwo(t value) value {
	return p.emit(op{kind: opPowerTwo, args: []value{t, p.constant(1)}})
}

// interleave sorts the operations by depth, so that those of independent chains alternate.
// The CPU can then run them in parallel, although it looks ahead only a limited number of
// instructions.
func (p *program) interleave() *program {
	depth := make([]int, len(p.ops))
	order := make([]int, len(p.ops))
	for i, o := range p.ops {
		order[i] = i
		for _, a := range o.args {
			if !p.invariant(a) {
				depth[i] = max(depth[i], depth[a]+1)
			}
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return depth[a] - depth[b] })
	now := make([]value, len(p.ops))
	q := &program{}
	for _, i := range order {
		o := p.ops[i]
		o.args = slices.Clone(o.args)
		for j, a := range o.args {
			o.args[j] = now[a]
		}
		now[i] = q.emit(o)
	}
	return q
}

// invariant reports whether v is the same in every iteration.
func (p *program) invariant(v value) bool {
	k := p.ops[v].kind
	return k == opScalar || k == opConst
}

// lastUses returns, for every value, the index of the op that uses it last. For invariant
// values, this index is beyond the last op, because the next iteration needs them.
func (p *program) lastUses() []int {
	last := make([]int, len(p.ops))
	for i, o := range p.ops {
		for _, a := range o.args {
			last[a] = i
		}
	}
	for v := range p.ops {
		if p.invariant(value(v)) {
			last[v] = len(p.ops)
		}
	}
	return last
}
