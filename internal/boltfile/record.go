package boltfile

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"

	bolt "go.etcd.io/bbolt"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum covers the key, so it detects a value that is stored under a wrong key.
func Checksum(key, data []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, data)
}

// Put stores a record as JSON with a checksum.
func Put(b *bolt.Bucket, key []byte, r any) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return b.Put(key, binary.LittleEndian.AppendUint32(data, Checksum(key, data)))
}

// Get decodes the record under a key and reports whether there is one.
func Get(b *bolt.Bucket, key []byte, r any) (bool, error) {
	data := b.Get(key)
	if data == nil {
		return false, nil
	}
	return true, Decode(key, data, r)
}

// Decode decodes a value that Put has stored under a key.
func Decode(key, data []byte, r any) error {
	n := len(data) - 4
	if n < 0 || binary.LittleEndian.Uint32(data[n:]) != Checksum(key, data[:n]) {
		return fmt.Errorf("%w: a record does not match its checksum", ErrDamaged)
	}
	if err := json.Unmarshal(data[:n], r); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// Each calls do for each record of a bucket. The bucket must not change during the call.
func Each[R any](b *bolt.Bucket, do func(key []byte, r *R) error) error {
	return b.ForEach(func(key, data []byte) error {
		r := new(R)
		if err := Decode(key, data, r); err != nil {
			return err
		}
		return do(key, r)
	})
}
