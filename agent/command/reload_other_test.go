//go:build !unix

package command

import "os"

var reloadSignal os.Signal
