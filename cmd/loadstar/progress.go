package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// reportProgress overwrites one line on a terminal, and is silent elsewhere.
func reportProgress(w io.Writer, done, of int, left time.Duration) {
	f, ok := w.(*os.File)
	if !ok {
		return
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	if done == of {
		fmt.Fprint(w, "\r\033[K")
		return
	}
	fmt.Fprintf(w, "\r\033[K%d of %d, about %s left", done, of, left.Round(time.Second))
}
