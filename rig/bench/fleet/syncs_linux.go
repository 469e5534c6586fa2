package fleet

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// processSyncs are the kernel's counters of a process's calls of fsync and fdatasync. It is
// empty if the kernel does not allow counting, which requires root and tracefs.
type processSyncs []int

const tracepoints = "/sys/kernel/tracing/events/syscalls/sys_enter_"

// syncsOf starts counting the calls of a process, with all its threads and the processes that
// it starts.
func syncsOf(pid int) (s processSyncs) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil
	}
	for _, call := range []string{"fsync", "fdatasync"} {
		text, err := os.ReadFile(tracepoints + call + "/id")
		if err != nil {
			s.close()
			return nil
		}
		id, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
		if err != nil {
			s.close()
			return nil
		}
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Config: id, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitInherit}
		for _, t := range tasks {
			tid, _ := strconv.Atoi(t.Name()) // the kernel's names are numbers
			fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if err == unix.ESRCH {
				continue // the thread has ended
			} else if err != nil {
				s.close()
				return nil
			}
			s = append(s, fd)
		}
	}
	return s
}

func (s processSyncs) read() (total float64, ok bool) {
	for _, fd := range s {
		var b [8]byte
		if n, err := unix.Read(fd, b[:]); err != nil || n != len(b) {
			return 0, false
		}
		total += float64(binary.NativeEndian.Uint64(b[:]))
	}
	return total, len(s) > 0
}

func (s processSyncs) close() {
	for _, fd := range s {
		_ = unix.Close(fd) // nothing was written
	}
}
