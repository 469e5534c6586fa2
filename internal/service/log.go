package service

import (
	"fmt"
	"io"
	"log/slog"
)

// Logger returns the log of a long-running process in a format (text or json) and with a
// minimum level.
func Logger(w io.Writer, format, name string) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return nil, fmt.Errorf("the log level must be debug, info, warn or error, not %q", name)
	}
	o := &slog.HandlerOptions{Level: level}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	}
	return nil, fmt.Errorf("the log format must be text or json, not %q", format)
}
