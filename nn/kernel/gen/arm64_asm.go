package main

import (
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/mmcloughlin/avo/gotypes"
	"github.com/mmcloughlin/avo/ir"
)

// neonLanes is the number of floats in a vector register.
const neonLanes = 4

// registers is a set of registers of one kind, with one bit for each.
type registers uint32

const (
	allVec registers = math.MaxUint32
	// allGP excludes R18, which the platform reserves, R27, which the assembler uses, and
	// the registers of the goroutine, the frame, the return address and the stack.
	allGP registers = 1<<27 - 1 - 1<<18
)

func (r *registers) take() int {
	if *r == 0 {
		panic("out of registers")
	}
	i := bits.TrailingZeros32(uint32(*r))
	*r &^= 1 << i
	return i
}

// gp is a general register.
type gp int

func (r gp) String() string { return fmt.Sprintf("R%d", int(r)) }

// vec is a vector register, formatted as a vector of floats by String.
type vec int

func (v vec) String() string { return fmt.Sprintf("V%d.S4", int(v)) }

// bits returns v as the operand of an instruction that operates on bits.
func (v vec) bits() string { return fmt.Sprintf("V%d.B16", int(v)) }

// low returns v as the operand of an instruction that reads or writes only its first
// lanes. Writing them clears the other lanes.
func (v vec) low() string { return fmt.Sprintf("F%d", int(v)) }

// vecs is a list of consecutive registers, which a single instruction can load or store.
type vecs []vec

func (v vecs) String() string {
	names := make([]string, len(v))
	for i := range v {
		names[i] = v[i].String()
	}
	return "[" + strings.Join(names, ", ") + "]"
}

// encoding describes an instruction that Go's assembler does not support: its code with all
// register numbers 0, and its Arm syntax, with the destination first.
type encoding struct {
	code   uint32
	syntax string
}

var (
	fadd  = encoding{0x4e20d400, "fadd v%d.4s, v%d.4s, v%d.4s"}
	fsub  = encoding{0x4ea0d400, "fsub v%d.4s, v%d.4s, v%d.4s"}
	fmul  = encoding{0x6e20dc00, "fmul v%d.4s, v%d.4s, v%d.4s"}
	fdiv  = encoding{0x6e20fc00, "fdiv v%d.4s, v%d.4s, v%d.4s"}
	fmax  = encoding{0x4e20f400, "fmax v%d.4s, v%d.4s, v%d.4s"}
	fmin  = encoding{0x4ea0f400, "fmin v%d.4s, v%d.4s, v%d.4s"}
	fsqrt = encoding{0x6ea1f800, "fsqrt v%d.4s, v%d.4s"}
	// faddp adds neighbouring lanes. The sums of the first source go to the lower half of the
	// destination, and those of the second source to the upper half.
	faddp = encoding{0x6e20d400, "faddp v%d.4s, v%d.4s, v%d.4s"}
	// fmlaFirst multiplies by the first lane of its last operand.
	fmlaFirst = encoding{0x4f801000, "fmla v%d.4s, v%d.4s, v%d.s[0]"}
	// fcmgtZero sets all bits of the lanes that are greater than zero.
	fcmgtZero = encoding{0x4ea0c800, "fcmgt v%d.4s, v%d.4s, #0.0"}
)

// lanewise maps each operation that needs only one instruction to that instruction. fmax
// and fmin return NaN if either operand is NaN, which is stricter than opMax and opMin
// require.
var lanewise = map[opKind]encoding{
	opAdd: fadd, opSub: fsub, opMul: fmul, opDiv: fdiv, opMax: fmax, opMin: fmin, opSqrt: fsqrt,
}

// word emits, as a data word, an instruction that Go's assembler does not support.
func (a *neon) word(e encoding, dst vec, src ...vec) {
	code, operands := e.code|uint32(dst), []any{dst}
	for i, shift := range []int{5, 16}[:len(src)] {
		code |= uint32(src[i]) << shift
		operands = append(operands, src[i])
	}
	a.op("WORD", fmt.Sprintf("$0x%08x // ", code)+fmt.Sprintf(e.syntax, operands...))
}

// op emits an instruction in the syntax of Go's assembler, with the destination last.
func (a *neon) op(name string, operands ...any) {
	text := make([]string, len(operands))
	for i, o := range operands {
		text[i] = fmt.Sprint(o)
	}
	fmt.Fprintln(&a.text, strings.TrimRight("\t"+name+" "+strings.Join(text, ", "), " "))
}

func (a *neon) label(name string) { fmt.Fprintf(&a.text, "%s:\n", name) }

// again emits code that decrements r and jumps to the label unless r is 0.
func (a *neon) again(r gp, label string) {
	a.op("SUBS", "$1", r, r)
	a.op("BNE", label)
}

// begin starts a function. Labels and registers are local to it.
func (a *neon) begin(name, doc, signature string) {
	sig, err := gotypes.ParseSignature(signature)
	if err != nil {
		panic(err)
	}
	a.fn = ir.NewFunction("neon" + title(name))
	a.fn.SetSignature(sig)
	a.fn.Doc = []string{a.fn.Name + " " + doc + "."}
	a.fn.AddPragma("noescape")
	a.file.AddSection(a.fn)
	a.freeGP, a.freeVec = allGP, allVec
	fmt.Fprintf(&a.text, "\n// %s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", a.fn.Stub(), a.fn.Name, a.fn.ArgumentBytes())
}

func (a *neon) end() { a.op("RET") }

// param returns the memory operand with which instructions access an argument.
func (a *neon) param(name string) string {
	p, err := a.fn.Signature.Params().Lookup(name).Resolve()
	if err != nil {
		panic(err)
	}
	return p.Addr.Asm()
}

func (a *neon) newGP() gp { return gp(a.freeGP.take()) }

// gp loads an argument into a free register and returns the register.
func (a *neon) gp(param string) gp {
	r := a.newGP()
	a.op("MOVD", a.param(param), r)
	return r
}

func (a *neon) copyGP(r gp) gp {
	c := a.newGP()
	a.op("MOVD", r, c)
	return c
}

func (a *neon) vec() vec { return vec(a.freeVec.take()) }

// vecs reserves n vector registers. They are consecutive unless registers have been
// released.
func (a *neon) vecs(n int) vecs {
	v := make(vecs, n)
	for i := range v {
		v[i] = a.vec()
	}
	return v
}

// restVecs reserves the remaining vector registers, at most n.
func (a *neon) restVecs(n int) vecs { return a.vecs(min(n, bits.OnesCount32(uint32(a.freeVec)))) }

func (a *neon) zero(v vec) { a.op("VMOVI", "$0", v.bits()) }

// rowPointers returns registers with the addresses of n rows that are ld bytes apart,
// starting at base.
func (a *neon) rowPointers(base, ld gp, n int) []gp {
	rows := []gp{base}
	for len(rows) < n {
		next := a.newGP()
		a.op("ADD", ld, rows[len(rows)-1], next)
		rows = append(rows, next)
	}
	return rows
}
