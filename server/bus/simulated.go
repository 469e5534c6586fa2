package bus

import (
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"
)

// These two let a model of NATS in a simulation use the format of messages.

// Pack encodes one result as Publish does.
func Pack(id string, data []byte) []byte {
	_, message := pack([]*offer{{result: result{id, data}}})
	return message
}

// Deliver decodes a message as Take does.
func Deliver(m jetstream.Msg) []*Delivery {
	b := &Bus{log: slog.New(slog.DiscardHandler)}
	return b.deliveries(m)
}
