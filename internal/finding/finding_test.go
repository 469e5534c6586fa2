package finding

import (
	"strings"
	"testing"
	"time"
)

func TestValidity(t *testing.T) {
	now := time.Now()
	const warn = 30 * 24 * time.Hour
	for _, k := range []struct {
		from, left time.Duration
		level      Level
		text       string
	}{
		{-time.Hour, -time.Hour, Fail, "expired"},
		{-time.Hour, 240*time.Hour + time.Minute, Warn, "10 days left"},
		{-time.Hour, 2400 * time.Hour, OK, "left"},
		{time.Hour, 2400 * time.Hour, Fail, "in the future"},
	} {
		var l List
		l.Validity("certificate", now.Add(k.from), now.Add(k.left), warn, "renew it")
		if l[0].Level != k.level || !strings.Contains(l[0].Text, k.text) || (l[0].Do == "") != (k.level == OK) {
			t.Errorf("%v left: %+v", k.left, l[0])
		}
	}
}

func TestClock(t *testing.T) {
	for ahead, want := range map[time.Duration]Finding{
		2 * time.Second: {Level: OK, Text: "2s ahead of its"},
		-time.Minute:    {Level: Warn, Text: "1m0s behind its"},
		time.Hour:       {Level: Fail, Text: "1h0m0s ahead of its"},
	} {
		var l List
		l.Clock("clock", ahead, "its")
		if l[0].Level != want.Level || l[0].Text != want.Text {
			t.Errorf("%v: %+v", ahead, l[0])
		}
	}
}
