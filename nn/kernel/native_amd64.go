package kernel

import "golang.org/x/sys/cpu"

// native returns the assembly sets that this CPU supports, fastest first.
func native() []*Set {
	var sets []*Set
	if !cpu.X86.HasAVX2 || !cpu.X86.HasFMA || !cpu.X86.HasBMI2 {
		return nil
	}
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL {
		sets = append(sets, &Set{name: "avx512", asm: avx512Loops})
	}
	return append(sets, &Set{name: "avx2", asm: avx2Loops})
}
