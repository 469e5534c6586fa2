package state

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"syscall"
	"unsafe"

	bolt "go.etcd.io/bbolt"
)

// Records are JSON with a checksum behind it, over the key too: bbolt has none of its
// own, and a record under another key is as wrong as a torn one.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(key string, data []byte) uint32 {
	return crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, data)
}

func putRecord(b *bolt.Bucket, key []byte, r any) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return b.Put(key, binary.LittleEndian.AppendUint32(data, checksum(string(key), data)))
}

// getRecord says whether there is a record under a key.
func getRecord(b *bolt.Bucket, key []byte, r any) (bool, error) {
	data := b.Get(key)
	if data == nil {
		return false, nil
	}
	return true, decode(key, data, r)
}

func decode(key, data []byte, r any) error {
	n := len(data) - 4
	if n < 0 || binary.LittleEndian.Uint32(data[n:]) != checksum(string(key), data[:n]) {
		return fmt.Errorf("%w: a record does not match its checksum", ErrDamaged)
	}
	if err := json.Unmarshal(data[:n], r); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// eachRecord goes through a bucket, which must not change meanwhile.
func eachRecord[R any](b *bolt.Bucket, do func(key []byte, r *R) error) error {
	return b.ForEach(func(key, data []byte) error {
		r := new(R)
		if err := decode(key, data, r); err != nil {
			return err
		}
		return do(key, r)
	})
}

// value points to numbers. Without any, ID is 0.
type value struct {
	ID    uint64 `json:"id,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
	Sum   uint32 `json:"sum,omitempty"` // checksum, with what the numbers belong to
}

// putValue writes numbers that belong to something. They must not change until the
// transaction ends.
func putValue(tx *bolt.Tx, belong string, data []byte) (value, error) {
	if len(data) == 0 {
		return value{}, nil
	}
	values := tx.Bucket(valuesBucket)
	id, err := values.NextSequence()
	if err != nil {
		return value{}, err
	}
	return value{id, int64(len(data)), checksum(belong, data)}, values.Put(idKey(id), data)
}

// find returns the numbers, valid until the transaction ends.
func (v value) find(tx *bolt.Tx) ([]byte, error) {
	if v.ID == 0 {
		return nil, nil
	}
	data := tx.Bucket(valuesBucket).Get(idKey(v.ID))
	if int64(len(data)) != v.Bytes {
		return nil, fmt.Errorf("%w: %d bytes where %d were written", ErrDamaged, len(data), v.Bytes)
	}
	return data, nil
}

// release lets the system take back the pages of the file that a reading or writing
// transaction went through. They are mapped, and would count as this process's memory
// until somebody else needed it: for a few hundred clients, most of what an agent on a
// small machine seems to take.
func release(tx *bolt.Tx) error {
	key, _ := tx.Cursor().First() // lies in the mapping
	if len(key) == 0 {
		return nil
	}
	first := unsafe.Pointer(unsafe.SliceData(key))
	at := uintptr(first) - tx.DB().Info().Data
	if size := uintptr(tx.Size()); at < size { // otherwise it does not, after all
		all := unsafe.Slice((*byte)(unsafe.Add(first, -int(at))), size)
		syscall.Madvise(all, syscall.MADV_DONTNEED) //nolint:errcheck // it is as good without
	}
	return nil
}

// raw views floats as the bytes that they are: little-endian, as every CPU that we
// build for is.
func raw(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
