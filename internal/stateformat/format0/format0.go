// Package format0 lets programs read states of format 0, which are gobs. The server and the
// simulator import it. Agents never had such states, and their program is smaller without
// the gob package.
package format0

import (
	"encoding/gob"
	"io"

	"loadstar/internal/stateformat"
)

func init() {
	stateformat.DecodeGob = func(r io.Reader, v any) error { return gob.NewDecoder(r).Decode(v) }
}
