package live

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
	"loadstar/internal/stateformat"
)

// fileName is the name of the file in the agent's folder.
const fileName = "live.db"

// The buckets. In keys, a zero byte ends a client's name; names contain none.
var (
	metaBucket    = []byte("meta")
	modelsBucket  = []byte("models")  // model -> modelRecord
	headsBucket   = []byte("heads")   // number -> head
	clientsBucket = []byte("clients") // client -> clientRecord
	statesBucket  = []byte("states")  // client, 0, role -> state of a contender or group
	newestBucket  = []byte("newest")  // client or group -> Issued
	issuedBucket  = []byte("issued")  // client, 0, cutoff -> recorded
	scoresBucket  = []byte("scores")  // client -> scores by day
)

// fileFormat is the version of the file format. Open refuses files with another version.
const fileFormat = "1"

func openFile(dir string) (*boltfile.File, error) {
	path := filepath.Join(dir, fileName)
	f, err := boltfile.Open(path)
	if errors.Is(err, boltfile.ErrDamaged) {
		return nil, fmt.Errorf("%w; move the file away to start again; readings and personal layers of training are in other files", err)
	} else if err != nil {
		return nil, err
	}
	err = f.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{metaBucket, modelsBucket, headsBucket, clientsBucket, statesBucket, newestBucket, issuedBucket, scoresBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(metaBucket)
		switch got := meta.Get([]byte("format")); {
		case got == nil:
			return meta.Put([]byte("format"), []byte(fileFormat))
		case string(got) != fileFormat:
			return fmt.Errorf("%w (format %s, but this one reads %s): upgrade", stateformat.ErrNewer, got, fileFormat)
		}
		return nil
	})
	if err != nil {
		_ = f.Close() // report the error that made opening fail, not this one
		return nil, err
	}
	return f, nil
}

// put stores an encoded value with its header and checksum.
func put(tx *bolt.Tx, bucket, key []byte, f stateformat.Format, state []byte) error {
	return tx.Bucket(bucket).Put(key, f.Wrap(state))
}

// get returns the content of a value, or nil if there is none. The content is a copy.
func get(tx *bolt.Tx, bucket, key []byte, f stateformat.Format) ([]byte, error) {
	b := tx.Bucket(bucket).Get(key)
	if b == nil {
		return nil, nil
	}
	_, state, err := f.Unwrap(b)
	if err != nil {
		return nil, fmt.Errorf("%s of %q: %w", f.Name, key, err)
	}
	return bytes.Clone(state), nil
}

// putJSON and getJSON store small records as JSON, so new fields need no new format.
func putJSON(tx *bolt.Tx, bucket, key []byte, f stateformat.Format, r any) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return put(tx, bucket, key, f, b)
}

func getJSON(tx *bolt.Tx, bucket, key []byte, f stateformat.Format, r any) error {
	b, err := get(tx, bucket, key, f)
	if b == nil || err != nil {
		return err
	}
	if err := json.Unmarshal(b, r); err != nil {
		return f.Damaged("%v", err)
	}
	return nil
}

// numberKey sorts numbers in ascending order.
func numberKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// timeKey is the key of a client's record at a given time.
func timeKey(client string, at int64) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(client), 0), uint64(at))
}

// eachTime calls do for the values of a client with times in [from, to), in ascending order.
func eachTime(tx *bolt.Tx, bucket []byte, client string, from, to int64, do func(at int64, value []byte) error) error {
	prefix := append([]byte(client), 0)
	c := tx.Bucket(bucket).Cursor()
	for k, v := c.Seek(timeKey(client, from)); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		if len(k) != len(prefix)+8 {
			continue
		}
		at := int64(binary.BigEndian.Uint64(k[len(prefix):]))
		if at >= to {
			return nil
		}
		if err := do(at, v); err != nil {
			return err
		}
	}
	return nil
}

// number is the inverse of numberKey.
func number(key []byte) uint64 {
	if len(key) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(key)
}
