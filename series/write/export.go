package write

import (
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/internal/disk"
	"loadstar/internal/textfmt"
	"loadstar/series"
)

// maxExport limits the number of values in an export, because they are in memory while the
// export is written.
const maxExport = 50_000_000

// Export writes the readings in the format of German spreadsheet exports, with a column per
// meter, local times, semicolons, decimal commas, and units below the header. The first line
// describes the data. Export omits the weather.
func Export(path string, s Source) error {
	zone, err := time.LoadLocation(s.Zone)
	if err != nil {
		return err
	}
	var all []series.Meter
	values := 0
	err = s.Each(func(m series.Meter, _ []string) error {
		if values += len(m.Load); values > maxExport {
			return fmt.Errorf("an export has at most %d values; write a folder instead", maxExport)
		}
		if len(all) > 0 && (m.Start != all[0].Start || len(m.Load) != len(all[0].Load)) {
			return fmt.Errorf("meter %s: all meters of an export must have the same steps", m.ID)
		}
		m.Load = slices.Clone(m.Load)
		all = append(all, m)
		return nil
	})
	if err != nil || len(all) == 0 {
		return err
	}
	return disk.WritePrivate(path, func(to *os.File) error {
		if _, err := fmt.Fprintf(to, "%s\r\n", s.About); err != nil {
			return err
		}
		w := csv.NewWriter(to)
		w.Comma, w.UseCRLF = ';', true
		header, units := []string{"Zeit"}, []string{""}
		for _, m := range all {
			header, units = append(header, textfmt.Cell(m.ID)), append(units, "kW")
		}
		_ = w.Write(header) // Error returns the first error of all rows
		_ = w.Write(units)
		row := make([]string, len(all)+1)
		for i := range all[0].Load {
			row[0] = time.Unix(all[0].Start, 0).Add(time.Duration(i) * s.Interval).In(zone).Format("02.01.2006 15:04")
			for k, m := range all {
				row[k+1] = ""
				if !series.Missing(m.Load[i]) {
					row[k+1] = strings.Replace(strconv.FormatFloat(float64(m.Load[i]), 'f', -1, 32), ".", ",", 1)
				}
			}
			_ = w.Write(row)
		}
		w.Flush()
		return w.Error()
	})
}
