package state

import (
	"fmt"
	"unsafe"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
)

// value refers to bytes in the values bucket. ID is 0 if there are no bytes.
type value struct {
	ID    uint64 `json:"id,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
	Sum   uint32 `json:"sum,omitempty"` // checksum over the owner's key and the bytes
}

// putValue writes data to the values bucket. belong is the key of the owner, which the checksum
// includes. The data must not change until the transaction ends.
func putValue(tx *bolt.Tx, belong string, data []byte) (value, error) {
	if len(data) == 0 {
		return value{}, nil
	}
	values := tx.Bucket(valuesBucket)
	id, err := values.NextSequence()
	if err != nil {
		return value{}, err
	}
	return value{id, int64(len(data)), boltfile.Checksum([]byte(belong), data)}, values.Put(idKey(id), data)
}

// find returns the bytes that v refers to. They are valid until the transaction ends.
func (v value) find(tx *bolt.Tx) ([]byte, error) {
	if v.ID == 0 {
		return nil, nil
	}
	data := tx.Bucket(valuesBucket).Get(idKey(v.ID))
	if int64(len(data)) != v.Bytes {
		return nil, fmt.Errorf("%w: a value has %d bytes, want %d", ErrDamaged, len(data), v.Bytes)
	}
	return data, nil
}

// check returns an error if the bytes that v refers to do not match its checksum.
func (v value) check(belong string, data []byte) error {
	if v.ID != 0 && boltfile.Checksum([]byte(belong), data) != v.Sum {
		return fmt.Errorf("%w: the values do not match their checksum", ErrDamaged)
	}
	return nil
}

// release lets the system reclaim the file pages that a transaction touched. Mapped pages
// count as this process's memory until another process needs it. With a few hundred
// clients, they would be most of the agent's resident memory.
func release(tx *bolt.Tx) error {
	key, _ := tx.Cursor().First() // the key's bytes are inside the mapping
	if len(key) == 0 {
		return nil
	}
	first := unsafe.Pointer(unsafe.SliceData(key))
	at := uintptr(first) - tx.DB().Info().Data
	if size := uintptr(tx.Size()); at < size { // do nothing if the key is outside the mapping
		all := unsafe.Slice((*byte)(unsafe.Add(first, -int(at))), size)
		dropPages(all)
	}
	return nil
}

// raw returns floats as bytes without copying. All supported CPUs are little-endian.
func raw(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
