package read

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// saysSynthetic reports whether the first line of a load table states that the data is
// synthetic, as in the generator's tables. All output made from such data must say so, too.
func (s *Survey) saysSynthetic() bool {
	for _, name := range s.names {
		f, err := os.Open(filepath.Join(s.dir, name))
		if err != nil {
			return false // opening the dataset reports the error
		}
		line, _ := bufio.NewReader(io.LimitReader(f, 4096)).ReadString('\n') // a short file has no end of line
		_ = f.Close()                                                        // nothing was written
		if strings.Contains(line, "synthetic data") {
			return true
		}
	}
	return false
}
