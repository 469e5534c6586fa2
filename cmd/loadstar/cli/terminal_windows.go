package cli

import (
	"os"

	"golang.org/x/sys/windows"
)

// columns returns the width of a terminal, or 0 if the file is not a terminal.
func columns(f *os.File) int {
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(windows.Handle(f.Fd()), &info) != nil {
		return 0
	}
	return max(int(info.Window.Right-info.Window.Left)+1, 1)
}
