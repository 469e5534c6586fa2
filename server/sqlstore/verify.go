package sqlstore

import (
	"crypto/tls"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Unverified returns the host of a PostgreSQL server on another machine whose certificate the
// connection does not check, or an empty string. The default of PostgreSQL's clients is
// sslmode=prefer, which accepts any certificate, and also a connection without TLS.
func Unverified(at string) string {
	config, err := pgx.ParseConfig(at)
	if err != nil || strings.HasPrefix(at, "sqlite:") {
		return "" // Open reports it
	}
	if unverified(config.Host, config.TLSConfig) {
		return config.Host
	}
	for _, f := range config.Fallbacks {
		if unverified(f.Host, f.TLSConfig) {
			return f.Host
		}
	}
	return ""
}

func unverified(host string, c *tls.Config) bool {
	if ip := net.ParseIP(host); host == "localhost" || strings.HasPrefix(host, "/") || ip != nil && ip.IsLoopback() {
		return false
	}
	// With sslmode=verify-ca the name is not checked, so any certificate of the authority
	// is accepted.
	return c == nil || c.InsecureSkipVerify
}
