package cli

import (
	"fmt"
	"time"
)

// Count formats a number and a noun, such as "1 layer" or "2 layers".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Size formats a number of bytes, such as "1.4 MB".
func Size(n int64) string {
	switch x := float64(n); {
	case n < 1000:
		return Count(int(n), "byte")
	case n < 1_000_000:
		return fmt.Sprintf("%.1f kB", x/1e3)
	case n < 1_000_000_000:
		return fmt.Sprintf("%.1f MB", x/1e6)
	default:
		return fmt.Sprintf("%.1f GB", x/1e9)
	}
}

// Took formats the time since start.
func Took(start time.Time) string {
	return time.Since(start).Round(100 * time.Millisecond).String()
}
