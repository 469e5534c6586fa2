package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// convertTiny converts a source that a test made by hand. The source's contents differ from the
// public source, so Convert must not put the files into place. convertTiny returns the contents
// of the files by name.
func convertTiny(t *testing.T, s Source, from string) map[string]string {
	t.Helper()
	to := t.TempDir()
	files, err := s.Convert(from, to)
	if !errors.Is(err, ErrDiffers) {
		t.Fatalf("the error is %v, want %v", err, ErrDiffers)
	}
	if _, err := os.Stat(filepath.Join(to, s.Folder)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s exists although its contents differ", s.Folder)
	}
	texts := map[string]string{}
	for _, f := range files {
		if f.Want == "" || f.Equal() {
			t.Errorf("%s has the checksum %s, and %q is expected", f.Name, f.Sum, f.Want)
		}
		var text strings.Builder
		for _, row := range rows(t, filepath.Join(to, s.Folder+".unverified", f.Name)) {
			text.WriteString(strings.Join(row, ",") + "\n")
		}
		texts[f.Name] = text.String()
	}
	return texts
}

// has fails if the text lacks one of the lines, or contains one of the absent lines.
func has(t *testing.T, name, text string, lines []string, absent ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("%s has no line %q; it begins with:\n%.300s", name, line, text)
		}
	}
	for _, part := range absent {
		if strings.Contains(text, part) {
			t.Errorf("%s contains %q", name, part)
		}
	}
}

func TestTinyCambridge(t *testing.T) {
	dir := t.TempDir()
	base := filepath.Join(dir, "building_data", "processed_data")
	put(t, filepath.Join(base, "buildings.csv"), "id,area,floors,roof\nb1,100.0,2,50.0\nb2,1,1,1\n")
	building := func(name string, value func(hour int) string) {
		put(t, filepath.Join(base, "UCam_Building_"+name, "electricity", "2016.csv"), yearOf(2016, value))
	}
	// A load of 10 or 20 kW cannot be 0, so a 0 is a gap. An empty field is also a gap.
	building("b1", func(hour int) string {
		switch hour {
		case 100:
			return "0.0"
		case 200:
			return ""
		}
		return []string{"10.0", "20.0"}[hour%2]
	})
	building("b2", func(hour int) string { return []string{"5.0", "5.1"}[hour%2] }) // constant
	building("b10", func(hour int) string {                                         // a 0 may be a reading
		if hour == 0 {
			return "0.0"
		}
		return []string{"0.2", "1.0"}[hour%2]
	})
	building("b11", func(hour int) string { return []string{"0.0", "9.0", "9.0"}[hour%3] }) // a third of the readings are missing
	weather := filepath.Join(dir, "aux_data", "MetOffice Weather Data")
	for year := 2013; year <= 2019; year++ {
		put(t, filepath.Join(weather, "processed_data", "bedford", fmt.Sprintf("%d.csv", year)), fmt.Sprintf("datetime,t,h,s\n%d-01-01 00:00:00,2.6,92.7,0.0\n%d-01-01 01:00:00,-3,90,1.5\n", year, year))
		put(t, filepath.Join(weather, "raw_data", "hourly_weather", fmt.Sprintf("midas_qcv-1_%d.csv", year)), fmt.Sprintf("title,G,x\ndata\nob_time,met_domain_name,wind_speed\n%d-01-01 00:00:00,SYNOP,10.0\n%d-01-01 00:00:00,AWSHRLY,11.0\n%d-01-01 01:00:00,SYNOP,NA\nend data\n", year, year, year))
	}
	files := convertTiny(t, cambridge, dir)
	has(t, "meters.csv", files["meters.csv"], []string{
		"cam_b1,cambridge,university,100.0,2.0,50.0,2016,8784,2,0,15.0,5.0,20.0,20.0,0,0,0,0",
		"cam_b10,cambridge,university,,,,2016,8784,0,1,0.6,0.4,1.0,1.0,0,0,0,0",
	}, "cam_b2,", "cam_b11,")
	has(t, "load", files["load_2013_2019.csv.gz"], []string{
		"cam_b1,2016-01-01T00:00:00,10.0", "cam_b1,2016-01-05T04:00:00,", "cam_b1,2016-01-09T08:00:00,", "cam_b10,2016-01-01T00:00:00,0.0",
		"cam_b1,2016-12-31T23:00:00,20.0\ncam_b10,2016-01-01T00:00:00,0.0",
	}, "cam_b2,")
	has(t, "weather", files["weather.csv.gz"], []string{"2013-01-01T00:00:00,2.60,5.14,92.70,0.00", "2019-01-01T01:00:00,-3.00,,90.00,1.50"})
}

func TestTinyBDG2(t *testing.T) {
	dir := t.TempDir()
	var text strings.Builder
	text.WriteString("month,weekday,day,hour,holiday,airTemp,value\n")
	for hour := range bdg2Hours {
		at := bdg2Start.Add(time.Duration(hour) * time.Hour)
		fmt.Fprintf(&text, "%d,0,%d,%d,%d,-3.5,%d\n", at.Month(), at.Day(), at.Hour(), hour%2, 1+hour/2%2)
	}
	folder := filepath.Join(dir, "dataset", "BDG2_dataset")
	put(t, filepath.Join(folder, "Hog_office_Ann.csv"), text.String())
	put(t, filepath.Join(folder, "Hog_office_Bob.csv"), strings.Replace(text.String(), "\n12,0,24,5,", "\n12,0,24,6,", 1))
	put(t, filepath.Join(folder, "Robin_food_Cy.csv"), text.String())
	files := convertTiny(t, bdg2, dir)
	has(t, "meters.csv", files["meters.csv"], []string{
		"Hog_office_Ann,hog,office,17544,0,0,0.5,1.5,0.5,2.0,2.0,1", "Robin_food_Cy,robin,food,17544,0,0,0.5,1.5,0.5,2.0,2.0,1",
	}, "Bob")
	has(t, "load", files["load_robin.csv.gz"], []string{"Robin_food_Cy,2017-12-31T23:00:00,2.0"}, "Ann")
	has(t, "weather", files["weather_hog.csv.gz"], []string{"2016-01-01T01:00:00,-3.5,1"})
}

func TestTinyResStock(t *testing.T) {
	dir := t.TempDir()
	var text strings.Builder
	text.WriteString("hour,non_shiftable_load,dhw_demand,cooling_demand,heating_demand,occupant_count\n")
	for hour := range resstockHours {
		fmt.Fprintf(&text, "%d,0.5,0.25,%v,0.0,%d\n", hour%24+1, 0.75*float64(hour%2), hour%3)
	}
	for _, folder := range neighborhoods {
		target := filepath.Join(dir, filepath.FromSlash(folder))
		put(t, filepath.Join(target, "schema.json"), `{"buildings": {"resstock-amy2018-2021-release-1-7": {"pv": {"autosize_attributes": {"roof_area": 91.949}}}}}`)
		put(t, filepath.Join(target, "resstock-amy2018-2021-release-1-7.csv"), text.String())
		line := strings.Repeat("0,", 6) + "-2.333,0,71.5,0,0,0,0,12,0,0,0,0,0,0,0,4.1,0\r\n"
		put(t, filepath.Join(target, "weather.epw"), strings.Repeat("header\r\n", 8)+strings.Repeat(line, resstockHours))
	}
	files := convertTiny(t, resstock, dir)
	has(t, "meters.csv", files["meters.csv"], []string{"ca_7,ca,home,91.9,2.0,0.75,0.0,8760,0,0.875,0.125,1.0,1.0,0.5,1"})
	has(t, "load", files["load_vt.csv.gz"], []string{"vt_7,2018-01-01T01:00:00,1.000,0.500,0.250,0.750,0.000"})
	has(t, "weather", files["weather_tx.csv.gz"], []string{"2018-12-31T23:00:00,-2.33,4.10,71.50,12.00"})
}

func TestTinySGSC(t *testing.T) {
	var text strings.Builder
	text.WriteString("meter_id,timestamp,general_kwh,controlled_kwh,gen_gross_kwh,gen_net_kwh,other_kwh\n")
	write := func(meter string, days int) {
		start := time.Date(2012, 6, 1, 0, 30, 0, 0, time.UTC)
		for i := range 48 * days {
			if i != 3 {
				fmt.Fprintf(&text, "%s,%s,0.25,0.05,0,NA,0\n", meter, start.Add(time.Duration(i)*time.Hour/2).Format(stampLayout))
			}
		}
	}
	write("4", 399)
	write("5", 400)
	path := filepath.Join(t.TempDir(), "union.csv")
	put(t, path, text.String())
	files := convertTiny(t, sgsc, path)
	// The hours run from 01:00 to 00:00. The hour at 02:00 lacks its first half, and the last
	// hour lacks its second half.
	has(t, "meters.csv", files["meters.csv"], []string{"sgsc_5,2012-06-01 00:30:00,2013-07-06 00:00:00,400,1,0.0,9600.0,2.0,0.6,0.0,0.6,0.6,1.0,0.0,0"}, "sgsc_4")
	has(t, "load_30min", files["load_30min.csv.gz"], []string{"sgsc_5,2012-06-01T00:30:00,0.6", "sgsc_5,2012-06-01T02:00:00,"})
	has(t, "load_hourly", files["load_hourly.csv.gz"], []string{"sgsc_5,2012-06-01T01:00:00,0.6", "sgsc_5,2012-06-01T02:00:00,", "sgsc_5,2013-07-06T00:00:00,"}, "T00:30")

	put(t, path, text.String()+"5,2012-06-01T00:30:00,1,0,0,0,0\n")
	if _, err := sgsc.Convert(path, t.TempDir()); err == nil || !strings.Contains(err.Error(), "not sorted by time") {
		t.Errorf("the error is %v", err)
	}
}

// TestFetch fetches a commit that is not the newest, and only the folders that are read.
func TestFetch(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here")
	}
	repository := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-C", repository, "-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "--quiet")
	put(t, filepath.Join(repository, "with a space", "a.csv"), "old")
	put(t, filepath.Join(repository, "other", "b.csv"), "other")
	git("add", ".")
	git("commit", "--quiet", "-m", "old")
	commit := git("rev-parse", "--short=7", "HEAD")
	put(t, filepath.Join(repository, "with a space", "a.csv"), "new")
	git("commit", "--quiet", "-am", "new")

	s := Source{Name: "x", Repository: repository, Commit: commit, Paths: []string{"with a space"}}
	to := filepath.Join(t.TempDir(), "source")
	if err := s.Fetch(context.Background(), to); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(to, "with a space", "a.csv")); err != nil || string(text) != "old" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(to, "other")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the other folder was fetched too")
	}
	s.Repository = filepath.Join(repository, "nowhere")
	if err := s.Fetch(context.Background(), filepath.Join(t.TempDir(), "source")); err == nil || !strings.Contains(err.Error(), "git clone") {
		t.Errorf("the error is %v", err)
	}
}
