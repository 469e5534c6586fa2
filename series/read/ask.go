package read

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"loadstar/series/table"
)

// maxQuestions is the maximum number of questions. Further settings get their defaults.
const maxQuestions = 2

// Asker asks the user on a terminal.
type Asker struct {
	In  io.Reader // nil if nobody can answer
	Out io.Writer
	// Defaults means that defaults are used where they exist, instead of asking.
	Defaults bool
}

// Unanswered is the error for settings that the files do not show and about which no user was
// asked.
type Unanswered struct{ text string }

func (u *Unanswered) Error() string { return u.text }

// question asks for a setting that the files do not show.
type question struct {
	flag, text, fallback string
	value                *string
	check                func(string) error
}

// questions returns the questions that are still open, with the most important ones first.
func (s *Survey) questions() []question {
	d := s.Description
	var open []question
	add := func(flag, text, fallback string, value *string, check func(string) error) {
		if *value == "" {
			open = append(open, question{flag, text, fallback, value, check})
		}
	}
	if s.Zoned {
		fallback := ""
		if s.UTC {
			fallback = "UTC"
		}
		add("zone", "Time zone of the meters, for hours, weekdays and holidays, such as Europe/London", fallback, &d.Zone, checkZone)
	} else {
		add("zone", "Time zone of the timestamps, such as Europe/London or UTC\n(write \"Europe/London standard\" if they do not follow daylight saving time)", "", &d.Zone, func(zone string) error {
			return checkZone(strings.TrimSuffix(zone, " standard"))
		})
	}
	if len(s.dates) > 1 {
		var forms []string
		for _, f := range s.dates {
			forms = append(forms, f.String())
		}
		example := s.load[0].Example
		add("date", fmt.Sprintf("Form of the dates: %s could be %s", example, strings.Join(meanings(example, s.dates), " or ")), "", &d.Load.Date, oneOfThese(forms...))
	}
	for _, f := range s.load {
		if f.Decimals != "" && d.Load.Decimal == "" {
			sep := strings.Trim(f.Decimals, "0123456789+-")
			add("decimal", fmt.Sprintf("Decimal separator: in %s, is %q the decimal separator or does it separate thousands?\nAnswer with the decimal separator, . or ,", f.Decimals, sep), sep, &d.Load.Decimal, oneOfThese(".", ","))
			break
		}
	}
	fallback := "kW"
	if s.load[0].Energy || d.Reading == ReadingCounter {
		fallback = "kWh"
	}
	add("unit", "Unit of the load: power in kW, W or MW, or energy per interval in kWh, Wh or MWh", fallback, &d.Unit, oneOfThese(Units()...))
	add("stamp", "Is a timestamp the start or the end of its interval?", StampStart, &d.Stamp, oneOfThese(StampStart, StampEnd))
	return open
}

// meanings returns the meaning of a date in each format.
func meanings(example string, forms []table.Dates) []string {
	var out []string
	for _, f := range forms {
		cell := table.Text([]byte(example))
		at, err := table.NewClock(time.UTC, 0, f).Instant(&cell)
		if err != nil {
			continue
		}
		out = append(out, fmt.Sprintf("%s (%s)", f, time.Unix(at.Unix, 0).UTC().Format("2 January 2006")))
	}
	return out
}

func oneOfThese(values ...string) func(string) error {
	return func(s string) error {
		if slices.Contains(values, s) {
			return nil
		}
		return fmt.Errorf("choose one of %s", strings.Join(values, ", "))
	}
}

// ask asks at most maxQuestions of the questions, and uses the defaults of the rest.
func (a Asker) ask(open []question) (asked int, assumed []question, err error) {
	if a.Defaults {
		open = slices.DeleteFunc(open, func(q question) bool {
			if *q.value = q.fallback; q.fallback != "" {
				assumed = append(assumed, q)
			}
			return q.fallback != ""
		})
	}
	for i := len(open) - 1; i >= 0 && len(open) > maxQuestions; i-- {
		if q := open[i]; q.fallback != "" {
			*q.value = q.fallback
			assumed = append(assumed, q)
			open = slices.Delete(open, i, i+1)
		}
	}
	if a.In != nil && len(open) <= maxQuestions {
		lines := bufio.NewScanner(a.In)
		for len(open) > 0 {
			if err := open[0].ask(lines, a.Out); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return asked, nil, err
			}
			asked++
			open = open[1:]
		}
	}
	if len(open) == 0 {
		return asked, assumed, nil
	}
	var flags, fallbacks []string
	for _, q := range open {
		flags = append(flags, "--"+q.flag)
		if q.fallback != "" {
			fallbacks = append(fallbacks, q.fallback)
		}
		if q.flag == "date" {
			flags[len(flags)-1] += " (" + strings.TrimPrefix(q.text, "Form of the dates: ") + ")"
		}
	}
	text := "some settings cannot be read from the files, and there is no terminal to ask on: use " + strings.Join(flags, ", ")
	if len(fallbacks) > 0 && !a.Defaults {
		text += fmt.Sprintf(" (or --yes for %s)", strings.Join(fallbacks, ", "))
	}
	return asked, nil, &Unanswered{text}
}

// ask repeats the question until the answer is valid. It returns io.EOF at the end of the
// input.
func (q question) ask(lines *bufio.Scanner, out io.Writer) error {
	for {
		fmt.Fprint(out, q.text)
		if q.fallback != "" {
			fmt.Fprintf(out, " [%s]", q.fallback)
		}
		fmt.Fprint(out, ": ")
		if !lines.Scan() {
			fmt.Fprintln(out)
			return errors.Join(io.EOF, lines.Err())
		}
		s := cmp.Or(strings.TrimSpace(lines.Text()), q.fallback)
		err := q.check(s)
		if err == nil {
			*q.value = s
			return nil
		}
		fmt.Fprintln(out, err)
	}
}
