package fixedseed_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestRunsTryTheSameCases(t *testing.T) {
	var runs [2][]uint64
	for i := range runs {
		rapid.Check(t, func(t *rapid.T) { runs[i] = append(runs[i], rapid.Uint64().Draw(t, "n")) })
	}
	if os.Getenv("PENSTOCK_SEED") == "" && (len(runs[0]) == 0 || !equal(runs[0], runs[1])) {
		t.Errorf("two runs with the same seed have drawn %d and other %d", runs[0], runs[1])
	}
}

func equal(a, b []uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Every package with property tests fixes the seed.
func TestPropertyTestsHaveFixedSeed(t *testing.T) {
	uses, fixed := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		folder := filepath.Dir(path)
		uses[folder] = uses[folder] || bytes.Contains(text, []byte(`"pgregory.net/rapid"`))
		fixed[folder] = fixed[folder] || bytes.Contains(text, []byte(`/internal/fixedseed"`))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder, use := range uses {
		if use && !fixed[folder] && filepath.Base(folder) != "fixedseed" {
			t.Errorf("the tests of %s do not import internal/fixedseed", folder)
		}
	}
}
