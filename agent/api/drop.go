package api

import (
	"os"
	"path/filepath"
	"time"

	"loadstar/agent/live"
	"loadstar/internal/disk"
)

// keepDrops is how long dropped files are kept.
const keepDrops = 14 * 24 * time.Hour

// Drop writes the newest forecasts of all clients and groups to a folder: latest.csv, and a
// copy under the newest cutoff, such as 2026-11-15/1400.csv, in UTC. Readers never see a
// partial file. Drop removes folders that are older than 14 days.
func Drop(dir string, s Service) error {
	site := s.Site()
	v := view{site: site, steps: site.H, factor: 1, zone: time.UTC}
	var (
		all    []*live.Issued
		cutoff int64
	)
	for _, c := range s.Clients() {
		f, err := s.Forecast(c.Name)
		if err != nil {
			continue // the client has no forecast yet
		}
		all = append(all, f)
		cutoff = max(cutoff, f.Cutoff)
	}
	if len(all) == 0 {
		return nil
	}
	for l := range all[0].Levels {
		v.levels = append(v.levels, l)
	}
	at := time.Unix(cutoff, 0).UTC()
	day := filepath.Join(dir, at.Format(time.DateOnly))
	if err := os.MkdirAll(day, 0o755); err != nil {
		return err
	}
	write := func(f *os.File) error { return writeCSV(f, v, all...) }
	if err := disk.Write(filepath.Join(day, at.Format("1504")+".csv"), write); err != nil {
		return err
	}
	if err := disk.Write(filepath.Join(dir, "latest.csv"), write); err != nil {
		return err
	}
	return tidy(dir, at.Add(-keepDrops))
}

// tidy removes the folders of all days before a given time.
func tidy(dir string, before time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		day, err := time.Parse(time.DateOnly, e.Name())
		if err != nil || !e.IsDir() || !day.Add(24*time.Hour).Before(before) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
