package kernel

import (
	"syscall"
	"testing"
	"unsafe"
)

// guarded returns n floats that end directly before a page without access rights, so that a
// loop that runs past the end crashes the test.
func guarded(t testing.TB, n int) []float32 {
	t.Helper()
	if n == 0 {
		return nil
	}
	page := syscall.Getpagesize()
	size := (n*4 + page - 1) / page * page
	mem, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mprotect(mem[size:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&mem[size-n*4])), n)
}
