package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
	"github.com/mmcloughlin/avo/reg"
)

// x86 writes the loops for one width of vector registers.
type x86 struct {
	*build.Context
	ident string
	lanes int
	wide  bool // AVX-512: 32 registers, lane masks, broadcasts from memory
	// constants holds each constant lanes times over; AVX2 has too few registers
	// to keep them all, so it reads them as operands.
	constants map[float32]operand.Mem
	// tailMask is lanes ones followed by lanes zeros, AVX2's lane masks.
	tailMask operand.Mem
}

func generateAMD64(dir string) error {
	ctx := build.NewContext()
	var sets []set
	for _, x := range []*x86{
		{Context: ctx, ident: "avx2", lanes: 8},
		{Context: ctx, ident: "avx512", lanes: 16, wide: true},
	} {
		x.data()
		s := set{ident: x.ident, lanes: x.lanes, mul: x.mulShapes(), dot: x.dotShapes(), mulTail: shapes(12, 1), chains: 12}
		if x.wide {
			s.chains = 24
		} else {
			x.transpose8()
		}
		s.transpose = "avx2Transpose8" // nothing but shuffles: wider registers gain little
		s.write(x)
		for _, t := range s.mulTail {
			x.mulTail(t.rows)
		}
		sets = append(sets, s)
	}
	file, err := ctx.Result()
	if err != nil {
		return err
	}
	if err := pass.Compile.Execute(file); err != nil {
		return err
	}
	cfg := printer.Config{Name: generator, Pkg: "kernel"}
	asm, err := printer.NewGoAsm(cfg).Print(file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "loops_amd64.s"), asm, 0o644); err != nil {
		return err
	}
	stubs, err := printer.NewStubs(cfg).Print(file)
	if err != nil {
		return err
	}
	if err := writeGo(filepath.Join(dir, "stubs_amd64.go"), string(stubs)); err != nil {
		return err
	}
	return writeTable(filepath.Join(dir, "table_amd64.go"), sets)
}

func (x *x86) mulShapes() []tileShape {
	if x.wide {
		// 24 accumulators, so that two FMA units are busy over their latency
		// and a row of B is loaded once for all of them.
		return append(append(append(shapes(12, 1), shapes(12, 2)...), shapes(8, 3)...), shapes(6, 4)...)
	}
	return append(shapes(12, 1), shapes(6, 2)...)
}

func (x *x86) dotShapes() []tileShape {
	rows := 3 // 12 accumulators, 3 rows of A and one of B: all 16 registers
	if x.wide {
		rows = 6
	}
	return append(append(shapes(rows, 1), shapes(rows, 4)...), tileShape{1, 8})
}

// data declares the constants of AVX2's loops.
func (x *x86) data() {
	if x.wide {
		return
	}
	x.constants = map[float32]operand.Mem{}
	for _, l := range elementwise {
		for _, o := range l.program().ops {
			if _, done := x.constants[o.imm]; o.kind != opConst || done {
				continue
			}
			bits := math.Float32bits(o.imm)
			m := x.StaticGlobal(fmt.Sprintf("const%08x", bits))
			x.DataAttributes(attr.RODATA | attr.NOPTR)
			for i := range x.lanes {
				x.AddDatum(4*i, operand.U32(bits))
			}
			x.constants[o.imm] = m
		}
	}
	x.tailMask = x.StaticGlobal("tailMask")
	x.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 2 * x.lanes {
		lane := uint32(math.MaxUint32)
		if i >= x.lanes {
			lane = 0
		}
		x.AddDatum(4*i, operand.U32(lane))
	}
}

func (x *x86) vec() reg.VecVirtual {
	if x.wide {
		return x.ZMM()
	}
	return x.YMM()
}

func (x *x86) zero(v reg.Register) {
	if x.wide {
		x.VPXORD(v, v, v)
	} else {
		x.VXORPS(v, v, v)
	}
}

func (x *x86) begin(name, doc, signature string) {
	x.Function(x.ident + title(name))
	x.Attributes(attr.NOSPLIT)
	x.SignatureExpr(signature)
	x.Doc(x.ident + title(name) + " " + doc + ".")
	x.Pragma("noescape")
}

func (x *x86) end() {
	x.VZEROUPPER()
	x.RET()
}

func (x *x86) gp(param string) reg.Register { return x.Load(x.Param(param), x.GP64()) }

func (x *x86) copyGP(r reg.Register) reg.Register {
	c := x.GP64()
	x.MOVQ(r, c)
	return c
}

// rowAddresses returns the operands of n rows ld bytes apart, from as few base
// registers as x86's addressing allows (three rows each), and those registers.
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

// mulTile writes blocks times C[rows][vecs·lanes] = start + A·B, one below the
// other, with A's elements broadcast and all of C's in registers.
func (x *x86) mulTile(rows, vecs int) {
	x.begin(fmt.Sprintf("mul%dx%d", rows, vecs), mulDoc(rows, vecs), mulSignature)
	x.mulBody(rows, vecs,
		func(m operand.Mem, v reg.Register) { x.VMOVUPS(m, v) },
		func(v reg.Register, m operand.Mem) { x.VMOVUPS(v, m) })
}

// mulTail writes a tile of one vector that touches its first few lanes only.
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
	// The start: a bias per row, what C holds, or zero.
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

// nextBlock goes back to the label "block" until all blocks are done.
func (x *x86) nextBlock() {
	x.DECQ(x.paramAddr("blocks"))
	x.JNZ(operand.LabelRef("block"))
}

// dotTile writes blocks times C[rows][cols] = start + A·Bᵀ, side by side, the
// rows of A and B contiguous: each accumulator holds the partial sums of one
// element of C.
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

func (x *x86) paramAddr(name string) operand.Mem {
	b, err := x.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// transpose8 writes the transposition of 8 rows of src, in blocks of 8 columns.
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
	// Pairs, then pairs of pairs, within 128-bit halves; then the halves.
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
		// Unpacking leaves columns 1 and 2 (5 and 6) in each other's place.
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

// foldQuarters adds the 128-bit quarters (or halves) of v.
func (x *x86) foldQuarters(v reg.VecVirtual) reg.Register {
	extract := x.VEXTRACTF128
	if x.wide {
		h := x.YMM()
		x.VEXTRACTF64X4(operand.U8(1), v, h)
		x.VADDPS(h, v.AsY(), h)
		v = h
		// The same on all 32 registers.
		extract = func(i, y, x1 operand.Op) { x.VEXTRACTF32X4(i, y, x1) }
	}
	h := x.XMM()
	extract(operand.U8(1), v.AsY(), h)
	x.VADDPS(h, v.AsX(), h)
	return h
}

// laneMask reads and writes the first few lanes of a vector.
type laneMask struct {
	x *x86
	k reg.Register // opmask or vector
}

// laneMask returns the mask of the first n lanes, n below the width.
func (x *x86) laneMask(n reg.Register) laneMask {
	if x.wide {
		ones, k := x.GP64(), x.K()
		x.MOVQ(operand.I32(-1), ones)
		x.BZHIQ(n, ones, ones)
		x.KMOVW(ones.As32(), k)
		return laneMask{x, k}
	}
	at, k := x.GP64(), x.YMM()
	x.LEAQ(x.tailMask.Offset(4*x.lanes), at)
	neg := x.copyGP(n)
	x.NEGQ(neg)
	x.VMOVUPS(operand.Mem{Base: at, Index: neg, Scale: 4}, k)
	return laneMask{x, k}
}

func (m laneMask) load(src operand.Mem, dst reg.Register) {
	if m.x.wide {
		m.x.VMOVUPS_Z(src, m.k, dst)
	} else {
		m.x.VMASKMOVPS(src, m.k, dst)
	}
}

func (m laneMask) store(src reg.Register, dst operand.Mem) {
	if m.x.wide {
		m.x.VMOVUPS(src, m.k, dst)
	} else {
		m.x.VMASKMOVPS(src, m.k, dst)
	}
}

// elementwise writes a loop over whole vectors and its masked tail.
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

// invariants loads what stays the same over the iterations: scalars into
// registers, constants too where there are enough registers.
func (x *x86) invariants(p *program, l loop) map[value]operand.Op {
	at := map[value]operand.Op{}
	for v, o := range p.ops {
		switch {
		case o.kind == opScalar && l.rows:
			at[value(v)] = x.vec() // loaded anew for each row
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

// lower writes the program once, for one vector of each stream.
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
		// binary writes dst = a op b; b may be in memory.
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
				a, b = b, a // b stays in a register
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
		case opScalar, opConst: // in at already
		default:
			panic(fmt.Sprintf("no instruction for operation %d", o.kind))
		}
	}
}

// fmaPeak writes a loop of independent fused multiply-adds on registers alone.
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
