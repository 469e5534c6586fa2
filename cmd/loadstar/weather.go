package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"loadstar/cmd/loadstar/cli"
	"loadstar/internal/disk"
	"loadstar/series/openmeteo"
)

// archiveDelay is the time until the archive contains a past day.
const archiveDelay = 5 * 24 * time.Hour

// weatherRequest describes the weather to fetch.
type weatherRequest struct {
	at, address, from, to string
	days, past            int
	precision             float64
}

func newDataWeather() *cobra.Command {
	var (
		q   weatherRequest
		out string
	)
	cmd := &cobra.Command{
		Use:   "weather",
		Short: "Fetch weather of a place from a service such as Open-Meteo",
		Long: `Fetch hourly temperature, wind, humidity and solar radiation of a place from a
service with Open-Meteo's interface, and write them as CSV with times in UTC.
A dataset and an agent's inbox accept this weather table. An agent can also
query the service itself (see weather in agent.yaml).

Without --from, the command fetches a forecast and the weather of the day
before. With --from, it fetches past weather from the archive, up to --to, which
is five days ago by default.

The service learns the coordinates and your internet address. The command rounds
the coordinates to 0.1 degrees, about 11 km, before it sends them. --precision
changes the rounding. The public service is free for non-commercial use.
--address names another service, such as your own.`,
		Example: "  loadstar data weather --at 52.52,13.41 --from 2024-01-01 -o mydata/weather.csv\n" +
			"  loadstar data weather --at 52.52,13.41 -o inbox/weather.csv",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, at, err := q.fetch(cmd.Context(), time.Now().UTC())
			if err != nil {
				return err
			}
			if out == "-" {
				return writeHours(cmd.OutOrStdout(), h)
			}
			if err := disk.Write(out, func(f *os.File) error { return writeHours(f, h) }); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s of %s at %s\n", out, cli.Count(len(h.Times), "hour"), strings.Join(h.Names, ", "), at)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.at, "at", "", "`LATITUDE,LONGITUDE` in degrees (required)")
	f.StringVar(&q.from, "from", "", "fetch past weather from this day on, such as 2024-01-01, instead of a forecast")
	f.StringVar(&q.to, "to", "", "last day of past weather (default five days ago)")
	f.IntVar(&q.days, "days", 7, fmt.Sprintf("number of days to forecast, up to %d", openmeteo.MaxAhead-1))
	f.IntVar(&q.past, "past", 1, fmt.Sprintf("days before today to fetch together with a forecast, up to %d", openmeteo.MaxPast))
	f.Float64Var(&q.precision, "precision", 0.1, "round the coordinates to multiples of this number of degrees; 0 sends them without rounding")
	f.StringVar(&q.address, "address", "", "address of the service (default "+openmeteo.PublicForecast+", and "+openmeteo.PublicArchive+" with --from)")
	f.StringVarP(&out, "output", "o", "weather.csv", "file to write, or - for standard output")
	return cmd
}

// fetch fetches the weather, and returns the requested coordinates.
func (q *weatherRequest) fetch(ctx context.Context, now time.Time) (*openmeteo.Hours, openmeteo.Place, error) {
	at, err := parsePlace(q.at)
	if err != nil {
		return nil, at, cli.Usagef("--at: %w", err)
	}
	at = at.Rounded(q.precision)
	address := q.address
	if address == "" {
		address = openmeteo.PublicForecast
		if q.from != "" {
			address = openmeteo.PublicArchive
		}
	}
	s, err := openmeteo.New(address)
	if err != nil {
		return nil, at, cli.Usagef("--address: %w", err)
	}
	if q.from == "" {
		switch {
		case q.to != "":
			return nil, at, cli.Usagef("--to needs --from")
		case q.days < 0 || q.days >= openmeteo.MaxAhead || q.past < 0 || q.past > openmeteo.MaxPast:
			return nil, at, cli.Usagef("--days is 0 to %d, and --past 0 to %d", openmeteo.MaxAhead-1, openmeteo.MaxPast)
		}
		h, err := s.Forecast(ctx, at, q.past, q.days)
		return h, at, err
	}
	from, err := time.Parse(time.DateOnly, q.from)
	if err != nil {
		return nil, at, cli.Usagef("--from is %q, want a day such as 2024-01-01", q.from)
	}
	to := now.Add(-archiveDelay).Truncate(24 * time.Hour)
	if q.to != "" {
		if to, err = time.Parse(time.DateOnly, q.to); err != nil {
			return nil, at, cli.Usagef("--to is %q, want a day such as 2024-12-31", q.to)
		}
	}
	if first, last := from.Format(time.DateOnly), to.Format(time.DateOnly); from.After(to) {
		return nil, at, cli.Usagef("the last day is %s, and the first %s; without --from the command fetches a forecast and the newest days (--past)", last, first)
	} else if from.Year() < 1940 || to.After(now) {
		return nil, at, cli.Usagef("the archive has days from 1940 to about five days ago, not %s to %s", first, last)
	}
	h, err := s.Archive(ctx, at, from, to)
	return h, at, err
}

func parsePlace(text string) (p openmeteo.Place, err error) {
	north, east, ok := strings.Cut(text, ",")
	if ok {
		if p.Latitude, err = strconv.ParseFloat(strings.TrimSpace(north), 64); err == nil {
			p.Longitude, err = strconv.ParseFloat(strings.TrimSpace(east), 64)
		}
	}
	if !ok || err != nil {
		return p, fmt.Errorf("%q is not a place: want LATITUDE,LONGITUDE in degrees, such as 52.5,13.4", text)
	}
	return p, p.Check()
}

// writeHours writes weather as CSV. Missing values are empty.
func writeHours(w io.Writer, h *openmeteo.Hours) error {
	out := csv.NewWriter(w)
	_ = out.Write(append([]string{"ds"}, h.Names...)) // Error returns the first failure
	row := make([]string, 1+len(h.Names))
	for i, at := range h.Times {
		if at == nil {
			continue
		}
		row[0] = time.Unix(*at, 0).UTC().Format(time.RFC3339)
		for c, v := range h.Rows[i] {
			row[1+c] = ""
			if !math.IsNaN(float64(v)) {
				row[1+c] = strconv.FormatFloat(float64(v), 'g', -1, 32)
			}
		}
		_ = out.Write(row)
	}
	out.Flush()
	return out.Error()
}
