package bus

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// macHeader is the header with the MAC of a message.
const macHeader = "Loadstar-Mac"

var errForged = errors.New("bus: the message has no valid MAC: no gateway of this server sent it")

// mac returns the MAC of a message. The text at its beginning keeps the key's other uses, if
// there ever are some, apart.
func mac(key, message []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("loadstar results 1\n"))
	h.Write(message)
	return h.Sum(nil)
}

// signed returns a message for the stream, with a MAC if there is a key.
func (b *Bus) signed(data []byte) *nats.Msg {
	m := nats.NewMsg(resultSubject)
	m.Data = data
	if len(b.config.Key) > 0 {
		m.Header.Set(macHeader, hex.EncodeToString(mac(b.config.Key, data)))
	}
	return m
}

// genuine reports whether a gateway with the same key sent a message. A message that was
// sent again is genuine: the ledger counts a result once, however often it arrives.
func (b *Bus) genuine(header nats.Header, data []byte) bool {
	if len(b.config.Key) == 0 {
		return true
	}
	got, err := hex.DecodeString(header.Get(macHeader))
	return err == nil && hmac.Equal(got, mac(b.config.Key, data))
}

// Forged returns how many messages were dropped because they had no valid MAC.
func (b *Bus) Forged() uint64 { return b.forged.Load() }

// warnEvery is how often forged messages are logged, because whoever sends them must not
// fill the log.
const warnEvery = time.Minute

func (b *Bus) dropForged() {
	n, now := b.forged.Add(1), time.Now().UnixNano()
	if last := b.forgedLogged.Load(); now-last > int64(warnEvery) && b.forgedLogged.CompareAndSwap(last, now) {
		b.log.Error("dropped messages on the bus that no gateway of this server sent; NATS needs credentials and TLS, and all processes the same database", "messages", n)
	}
}
