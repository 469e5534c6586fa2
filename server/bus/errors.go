package bus

import (
	"net/http"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStream's error codes for which the client library has no names.
const (
	errAccountExceeded       = jetstream.ErrorCode(server.JSAccountResourcesExceededErr)
	errInsufficientResources = jetstream.ErrorCode(server.JSInsufficientResourcesErr)
	errStorageExceeded       = jetstream.ErrorCode(server.JSStorageResourcesExceededErr)
	errInvalidConfig         = jetstream.ErrorCode(server.JSStreamInvalidConfigF)
	errNoReplicas            = jetstream.ErrorCode(server.JSStreamReplicasNotSupportedErr)
	errStoreFailed           = jetstream.ErrorCode(server.JSStreamStoreFailedF)
)

// permanent reports whether JetStream will refuse the same request every time. These
// cases are not permanent: a missing object may be created, a conflict with a running
// request ends, and a rate limit passes.
func permanent(err *jetstream.APIError) bool {
	switch err.Code {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	}
	return err.Code/100 == 4
}
