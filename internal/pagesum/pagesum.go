// Package pagesum adds a checksum to every page of a SQLite database, because SQLite itself
// does not notice if a disk returns other bytes than were written. It is a VFS, the layer
// between SQLite and the operating system, and works as SQLite's own extension cksumvfs,
// which the driver does not contain: the last eight bytes of a page are reserved and hold
// the checksum of the others and the page's number. The checksum is computed when a page is
// written to the database file and checked when it is read from there. SQLite checks the
// frames of the write-ahead log itself.
package pagesum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

const (
	// VFS is the value of the parameter vfs in the name of a database.
	VFS = "pagesum"
	// Pragma reserves room for checksums. A database that has no content yet gets checksums
	// from the beginning, another one after VACUUM. Every connection must run it before it
	// sets the journal mode, which creates content. The driver runs pragmas in the order of
	// their names.
	Pragma = "checksum_pages"
	// Failed is SQLite's error code of a page whose checksum is wrong.
	Failed = sqlite3.SQLITE_IOERR_DATA

	reserved = 8
	header   = 100 // length of the header of a database
	reserve  = 20  // offset in the header of the number of reserved bytes
)

// file is what we know of an open database file.
type file struct {
	methods uintptr // of the VFS below
	db      uintptr // the connection
	checked bool    // its pages have checksums
}

var state struct {
	sync.RWMutex
	below   uintptr             // the VFS below
	methods map[uintptr]uintptr // ours, by those of the VFS below
	files   map[uintptr]*file
}

// Register registers the VFS. Further calls do nothing.
var Register = sync.OnceValue(func() error {
	tls := libc.NewTLS()
	state.below = sqlite3.Xsqlite3_vfs_find(tls, 0)
	if state.below == 0 {
		return errors.New("SQLite has no VFS")
	}
	state.methods, state.files = map[uintptr]uintptr{}, map[uintptr]*file{}
	name, err := libc.CString(VFS)
	if err != nil {
		return err
	}
	own := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_vfs{}))) // never freed
	v := at[sqlite3.Tsqlite3_vfs](own)
	*v = *at[sqlite3.Tsqlite3_vfs](state.below)
	v.FpNext, v.FzName, v.FxOpen = 0, name, pointer(open)
	if rc := sqlite3.Xsqlite3_vfs_register(tls, own, 0); rc != sqlite3.SQLITE_OK {
		return fmt.Errorf("registering the VFS %s: code %d", VFS, rc)
	}
	return nil
})

// at returns the value at an address outside Go's memory.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

// pointer returns a function of this package as SQLite's translation from C calls it: the
// address of its function value, which is static.
func pointer[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }

// function returns the function that a pointer refers to.
func function[F any](p uintptr) F { return *(*F)(unsafe.Pointer(&p)) }

type (
	openFunc    = func(tls *libc.TLS, vfs, name, f uintptr, flags int32, out uintptr) int32
	plainFunc   = func(tls *libc.TLS, f uintptr) int32
	inOutFunc   = func(tls *libc.TLS, f, buffer uintptr, n int32, off sqlite3.Tsqlite3_int64) int32
	controlFunc = func(tls *libc.TLS, f uintptr, op int32, arg uintptr) int32
)

// open opens a file. A database file gets our methods for reading and writing.
func open(tls *libc.TLS, _, name, f uintptr, flags int32, out uintptr) int32 {
	rc := function[openFunc](at[sqlite3.Tsqlite3_vfs](state.below).FxOpen)(tls, state.below, name, f, flags, out)
	if rc != sqlite3.SQLITE_OK || flags&sqlite3.SQLITE_OPEN_MAIN_DB == 0 {
		return rc
	}
	x := &file{methods: at[sqlite3.Tsqlite3_file](f).FpMethods}
	head := tls.Alloc(header)
	defer tls.Free(header)
	if function[inOutFunc](x.below().FxRead)(tls, f, head, header, 0) == sqlite3.SQLITE_OK {
		x.look(unsafe.Slice(at[byte](head), header))
	}
	state.Lock()
	defer state.Unlock()
	state.files[f] = x
	at[sqlite3.Tsqlite3_file](f).FpMethods = methodsOf(tls, x.methods)
	return rc
}

// methodsOf returns our methods for those of the VFS below. The caller must hold the lock.
func methodsOf(tls *libc.TLS, below uintptr) uintptr {
	if own, ok := state.methods[below]; ok {
		return own
	}
	own := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_io_methods{}))) // never freed
	m := at[sqlite3.Tsqlite3_io_methods](own)
	*m = *at[sqlite3.Tsqlite3_io_methods](below)
	m.FxClose, m.FxRead, m.FxWrite, m.FxFileControl = pointer(closeFile), pointer(read), pointer(write), pointer(control)
	m.FxDeviceCharacteristics = pointer(characteristics)
	// Version 2 has no memory-mapped reading, which would go past the checks.
	m.FiVersion = min(m.FiVersion, 2)
	state.methods[below] = own
	return own
}

func (x *file) below() *sqlite3.Tsqlite3_io_methods {
	return at[sqlite3.Tsqlite3_io_methods](x.methods)
}

// look learns from the beginning of a database whether its pages have checksums. A database
// never loses them, so damage of the beginning does not end the checks.
func (x *file) look(head []byte) {
	x.checked = x.checked || string(head[:15]) == "SQLite format 3" && head[reserve] == reserved
}

func of(f uintptr) *file {
	state.RLock()
	defer state.RUnlock()
	return state.files[f]
}

func closeFile(tls *libc.TLS, f uintptr) int32 {
	x := of(f)
	state.Lock()
	delete(state.files, f)
	state.Unlock()
	at[sqlite3.Tsqlite3_file](f).FpMethods = x.methods
	return function[plainFunc](x.below().FxClose)(tls, f)
}

func read(tls *libc.TLS, f, buffer uintptr, n int32, off sqlite3.Tsqlite3_int64) int32 {
	x := of(f)
	rc := function[inOutFunc](x.below().FxRead)(tls, f, buffer, n, off)
	if rc == sqlite3.SQLITE_OK && off == 0 && n >= header {
		x.look(unsafe.Slice(at[byte](buffer), n))
	}
	if rc != sqlite3.SQLITE_OK || !x.checked || !isPage(int64(n), off) {
		return rc
	}
	if page := unsafe.Slice(at[byte](buffer), n); !Valid(page, off/int64(n)+1) {
		return Failed
	}
	return rc
}

func write(tls *libc.TLS, f, buffer uintptr, n int32, off sqlite3.Tsqlite3_int64) int32 {
	x := of(f)
	page := unsafe.Slice(at[byte](buffer), n)
	if off == 0 && n >= header {
		x.look(page)
	}
	if x.checked && isPage(int64(n), off) {
		// The reserved bytes belong to us, so the buffer may be changed.
		binary.BigEndian.PutUint64(page[n-reserved:], sum(page, off/int64(n)+1))
	}
	return function[inOutFunc](x.below().FxWrite)(tls, f, buffer, n, off)
}

// characteristics denies that parts of pages can be read, which SQLite would do with long
// values. Only whole pages can be checked.
func characteristics(tls *libc.TLS, f uintptr) int32 {
	return function[plainFunc](of(f).below().FxDeviceCharacteristics)(tls, f) &^ sqlite3.SQLITE_IOCAP_SUBPAGE_READ
}

// control handles our pragma, and notes which connection has a file.
func control(tls *libc.TLS, f uintptr, op int32, arg uintptr) int32 {
	x := of(f)
	switch op {
	case sqlite3.SQLITE_FCNTL_PDB:
		x.db = *at[uintptr](arg)
	case sqlite3.SQLITE_FCNTL_PRAGMA:
		if words := at[[3]uintptr](arg); libc.GoString(words[1]) == Pragma {
			return reserveBytes(tls, x.db)
		}
	}
	return function[controlFunc](x.below().FxFileControl)(tls, f, op, arg)
}

func reserveBytes(tls *libc.TLS, db uintptr) int32 {
	name, err := libc.CString("main")
	if err != nil {
		return sqlite3.SQLITE_NOMEM
	}
	defer libc.Xfree(tls, name)
	n := tls.Alloc(4)
	defer tls.Free(4)
	*at[int32](n) = reserved
	return sqlite3.Xsqlite3_file_control(tls, db, name, sqlite3.SQLITE_FCNTL_RESERVE_BYTES, n)
}

// isPage reports whether so many bytes at an offset are a page: SQLite reads some fields of
// the header by themselves.
func isPage(n, off int64) bool { return n >= 512 && n&(n-1) == 0 && off%n == 0 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum returns the reserved bytes of a page: a checksum and the page's number.
func sum(page []byte, number int64) uint64 {
	return uint64(crc32.Checksum(page[:len(page)-reserved], castagnoli))<<32 | uint64(uint32(number))
}

// Valid reports whether a page has its checksum. SQLite does not write pages that are free,
// so a page of zeros is valid too.
func Valid(page []byte, number int64) bool {
	has := binary.BigEndian.Uint64(page[len(page)-reserved:])
	if has == sum(page, number) {
		return true
	}
	for _, b := range page {
		if b != 0 {
			return false
		}
	}
	return number != 1
}

// Has reports whether the pages of a database file have checksums.
func Has(f *os.File) (bool, error) {
	head := make([]byte, header)
	if _, err := f.ReadAt(head, 0); err != nil {
		return false, fmt.Errorf("%s: %w", f.Name(), err)
	}
	x := &file{}
	x.look(head)
	return x.checked, nil
}

// Verify checks all pages of a database file that has no write-ahead log. It returns nil for
// a database without checksums.
func Verify(f *os.File) error {
	has, err := Has(f)
	if err != nil || !has {
		return err
	}
	path := f.Name()
	head := make([]byte, header)
	if _, err := f.ReadAt(head, 0); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint16(head[16:]))
	if size == 1 {
		size = 65536
	}
	pages := int64(binary.BigEndian.Uint32(head[28:]))
	if !isPage(size, 0) {
		return fmt.Errorf("%s: pages of %d bytes: %w", path, size, ErrPage)
	}
	page := make([]byte, size)
	for n := int64(1); n <= pages; n++ {
		if _, err := f.ReadAt(page, (n-1)*size); err != nil {
			return fmt.Errorf("%s: page %d of %d: %w", path, n, pages, err)
		}
		if !Valid(page, n) {
			return fmt.Errorf("%s: page %d of %d: %w", path, n, pages, ErrPage)
		}
	}
	return nil
}

// ErrPage means that the content of a page is not what was written.
var ErrPage = errors.New("the checksum is wrong")
