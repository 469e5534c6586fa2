package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"loadstar/internal/testkit"
)

// pages returns README.md and the pages of docs that contain blocks to run. The blocks of a
// page are run in order, in an empty folder. Blocks marked sh are commands, and blocks marked
// python use the Python package. Other blocks show output or are not meant to be run as they
// are.
func pages(t *testing.T, root string) map[string]string {
	out := map[string]string{}
	add := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(blocks(string(text))) > 0 {
			name, err := filepath.Rel(root, path)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = string(text)
		}
	}
	add(filepath.Join(root, "README.md"))
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			add(path)
		}
		return err
	})
	if err != nil || len(out) < 5 {
		t.Fatalf("%d pages have blocks to run: %v", len(out), err)
	}
	return out
}

// python is Debian's interpreter, for which pandas is a package.
const python = "/usr/bin/python3"

// TestDocuments runs the code blocks of the documents, as a reader would.
func TestDocuments(t *testing.T) {
	if testing.Short() {
		t.Skip("trains models")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range pages(t, root) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runBlocks(t, root, text)
		})
	}
}

// TestOwnData runs the tutorial about the user's own data with readings every 15 minutes. A day
// then has 96 steps, all of which the model forecasts.
func TestOwnData(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a model")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/tutorials/own-data.md"))
	if err != nil {
		t.Fatal(err)
	}
	quarters := strings.Replace(string(text), "data generate ", "data generate --interval 15m ", 1)
	if quarters == string(text) {
		t.Fatal("the tutorial does not generate data")
	}
	f, err := os.Open(filepath.Join(runBlocks(t, root, quarters), "tomorrow.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) != 1+10*96 {
		t.Fatalf("%d rows, %v; want a header and 96 steps of 10 meters", len(rows), err)
	}
	source := slices.Index(rows[0], "source")
	for _, r := range rows[1:] {
		if r[source] != "model" {
			t.Fatalf("%v is not from the model", r)
		}
	}
}

// endServices ends the processes whose IDs a page has written to files, and waits until they
// have ended, so that they do not write to a folder that is being removed.
func endServices(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.pid")) // the pattern is valid
	for _, f := range files {
		text, err := os.ReadFile(f)
		pid, bad := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || bad != nil {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		for range 100 {
			if p.Signal(syscall.Signal(0)) != nil {
				break // the process has ended
			}
			time.Sleep(100 * time.Millisecond)
		}
		_ = p.Kill() // fails only if the process has ended
	}
}

// runBlocks runs the blocks of a page in an empty folder, and returns the folder.
func runBlocks(t *testing.T, root, text string) (dir string) {
	dir = t.TempDir()
	t.Cleanup(func() { endServices(dir) })
	port, err := testkit.FreePort() // for pages that need a free port
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("loadstar") // package testscript adds loadstar to the PATH
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"bin/loadstar": program, "plans": filepath.Join(root, "plans"), "datasets": filepath.Join(root, "datasets"),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range blocks(text) {
		var cmd *exec.Cmd
		switch b.language {
		case "sh":
			cmd = exec.Command("bash", "-euo", "pipefail", "-c", b.code)
		case "python":
			if exec.Command(python, "-c", "import pandas").Run() != nil {
				if os.Getenv("CI") != "" {
					t.Fatal("pandas is missing: install python3-pandas")
				}
				t.Skip("needs python3-pandas")
			}
			cmd = exec.Command(python, "-c", b.code)
		}
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), fmt.Sprintf("PORT=%d", port), "LOADSTAR="+program, "PYTHONPATH="+filepath.Join(root, "python"), "PYTHONDONTWRITEBYTECODE=1")
		cmd.WaitDelay = time.Second // a background service may keep the output open
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, b.code, bytes.TrimSpace(out))
		}
		t.Logf("%s\n%s", b.code, bytes.TrimSpace(out))
	}
	return dir
}

type block struct{ language, code string }

// blocks returns the fenced blocks of a page that are marked sh or python. Adjacent Python
// blocks form one program, so that a page can explain it part by part.
func blocks(text string) (all []block) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		language, ok := strings.CutPrefix(lines[i], "```")
		if !ok {
			continue
		}
		from := i + 1
		for i++; i < len(lines) && lines[i] != "```"; i++ {
		}
		code := strings.Join(lines[from:min(i, len(lines))], "\n")
		n := len(all)
		switch {
		case language == "python" && n > 0 && all[n-1].language == "python":
			all[n-1].code += "\n" + code
		case language == "sh" || language == "python":
			all = append(all, block{language, code})
		}
	}
	return all
}

// TestAccessPage checks that a script runs the same commands with a real server as the page
// about users shows, except for the start of the server.
func TestAccessPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/access.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("testdata/script/fleet/users.txtar")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(page)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "loadstar ") && !strings.HasPrefix(line, "loadstar serve ") {
			n++
			if !strings.Contains(string(script), "exec "+line+"\n") {
				t.Errorf("no script runs %q", line)
			}
		}
	}
	if n < 10 {
		t.Errorf("the page has %d commands", n)
	}
}
