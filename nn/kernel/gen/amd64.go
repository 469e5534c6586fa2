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

// x86 generates the assembly of all loops for one width of vector registers.
type x86 struct {
	*build.Context
	ident string
	lanes int
	wide  bool // AVX-512: 32 registers, lane masks, broadcasts from memory
	// constants contains each constant repeated for all lanes. AVX2 has too few registers
	// for all constants, so it reads them as memory operands.
	constants map[float32]operand.Mem
	// tailMask contains one vector of set bits followed by one vector of zero bits. A lane
	// mask for AVX2 is a vector loaded from a position within it.
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
		s.transpose = "avx2Transpose8" // only shuffles, for which wider registers gain little
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

// data declares the constants of the AVX2 loops.
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

// nextBlock generates a jump to the label "block", which is taken until all blocks are done.
func (x *x86) nextBlock() {
	x.DECQ(x.paramAddr("blocks"))
	x.JNZ(operand.LabelRef("block"))
}

func (x *x86) paramAddr(name string) operand.Mem {
	b, err := x.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// laneMask is a mask with which instructions load or store only the first lanes of a
// vector.
type laneMask struct {
	x *x86
	k reg.Register // opmask or vector
}

// laneMask returns the mask of the first n lanes. n must be below the vector's width.
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
