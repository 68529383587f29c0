package durable_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server/durable"
)

func openDir(t *testing.T, path string) *durable.Dir {
	t.Helper()
	d, err := durable.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func write(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func TestDirKeepsFilesAcrossRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "for", "it")
	d := openDir(t, path)
	if _, err := d.ReadFile("a", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that was not written: %v, want ErrNotExist", err)
	}
	for _, text := range []string{"first", "second"} {
		if err := d.WriteFile("a", write(text)); err != nil {
			t.Fatal(err)
		}
	}
	failure := errors.New("disk full")
	err := d.WriteFile("a", func(w io.Writer) error { return errors.Join(write("thi")(w), failure) })
	if !errors.Is(err, failure) {
		t.Errorf("a write that fails: %v", err)
	}
	if _, err := durable.OpenDir(path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opened twice: %v, want an error that says so", err)
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteFile("a", write("late")); err == nil {
		t.Error("a write after Close: want an error")
	}
	d = openDir(t, path)
	if got, err := d.ReadFile("a", 6); err != nil || string(got) != "second" {
		t.Errorf("got %q, %v, want the last complete content", got, err)
	}
	if _, err := d.ReadFile("a", 5); err == nil {
		t.Error("a file that is too large: want an error")
	}
	if info, err := os.Stat(d.Path("a")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want a file that only its owner can read", info, err)
	}
	aside, err := d.SetAside("a", "damaged")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadFile("a", 100); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(aside, d.Path("a.damaged-")) {
		t.Errorf("set aside as %s: %v", aside, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
