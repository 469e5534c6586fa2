package aggregate

import (
	"bytes"
	"encoding/gob"
	"fmt"
)

func encode(state any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(state)
	return b.Bytes(), err
}

func decode(b []byte, state any) error {
	r := bytes.NewReader(b)
	if err := gob.NewDecoder(r).Decode(state); err != nil {
		return fmt.Errorf("aggregate: reading saved state: %w", err)
	}
	if r.Len() > 0 {
		return fmt.Errorf("aggregate: %d bytes after the saved state", r.Len())
	}
	return nil
}
