package kernel

// native returns the sets in assembly that this CPU runs, fastest first. NEON
// is part of every arm64.
func native() []*Set { return []*Set{{name: "neon", asm: neonLoops}} }
