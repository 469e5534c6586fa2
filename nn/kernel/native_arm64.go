package kernel

// native returns the assembly sets that this CPU supports. Every arm64 CPU has NEON.
func native() []*Set { return []*Set{{name: "neon", asm: neonLoops}} }
