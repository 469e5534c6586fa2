package cli

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// Progress is a progress bar. It prints nothing if the output is not a terminal.
type Progress struct {
	bars *mpb.Progress
	bar  *mpb.Bar
	text atomic.Value // string, read by the bar's goroutine

	total int
	// first is the count in the first call of Set, and start is the time of that call.
	first int
	start time.Time
}

// NewProgress returns a bar for the given number of steps.
func NewProgress(w io.Writer, total int) *Progress {
	p := &Progress{total: total}
	p.text.Store("")
	f, ok := w.(*os.File)
	if !ok {
		return p
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return p
	}
	p.bars = mpb.New(mpb.WithOutput(w), mpb.WithWidth(40))
	p.bar = p.bars.AddBar(int64(total),
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.CountersNoUnit("%d of %d ")),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return p.text.Load().(string) })),
	)
	return p
}

// Set updates the bar with a count and a note. It estimates the remaining time from the
// progress since the first call.
func (p *Progress) Set(done int, note string) {
	if p.bar == nil {
		return
	}
	if p.start.IsZero() {
		p.first, p.start = done, time.Now()
	}
	if n := done - p.first; n > 0 {
		left := time.Duration(float64(time.Since(p.start)) / float64(n) * float64(p.total-done))
		p.text.Store(fmt.Sprintf(" about %s left%s", left.Round(time.Second), note))
	}
	p.bar.SetCurrent(int64(done))
}

// Show updates the bar with a count and a text that replaces the estimated time.
func (p *Progress) Show(done int, text string) {
	if p.bar == nil {
		return
	}
	p.text.Store(text)
	p.bar.SetCurrent(int64(done))
}

// Stop removes the bar from the terminal.
func (p *Progress) Stop() {
	if p.bar == nil {
		return
	}
	p.bar.Abort(true)
	p.bars.Wait()
}

// Stages shows a sequence of bars. A new bar starts when the total changes.
type Stages struct {
	To  io.Writer
	bar *Progress
}

// Set updates the bar, or starts the next one.
func (s *Stages) Set(done, total int, note string) {
	s.next(total)
	s.bar.Set(done, note)
}

// Show is like Set, but displays a text instead of the remaining time.
func (s *Stages) Show(done, total int, text string) {
	s.next(total)
	s.bar.Show(done, text)
}

func (s *Stages) next(total int) {
	if s.bar == nil || s.bar.total != total {
		s.Stop()
		s.bar = NewProgress(s.To, total)
	}
}

// Stop removes the bar from the terminal.
func (s *Stages) Stop() {
	if s.bar != nil {
		s.bar.Stop()
		s.bar = nil
	}
}
