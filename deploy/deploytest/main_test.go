// Package deploytest_test renders the chart, the kustomize base and the Compose file, checks
// every object against the types that Kubernetes and Compose have, and runs the daemon as
// they would. It is a module of its own, so that users of penstock do not download those.
package deploytest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
)

const (
	deployDir    = ".."
	chartDir     = deployDir + "/helm/penstock"
	kustomizeDir = deployDir + "/kubernetes"
	token        = "0123456789abcdef"
)

// Shared by all tests: the command, and the Redis of its daemons.
var (
	binary string
	redis  *redistest.Server
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "deploytest")
	if err != nil {
		return fail(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "penstock")
	build := exec.Command("go", "build", "-o", binary, "./cmd/penstock")
	build.Dir = filepath.Join(deployDir, "..")
	if out, err := build.CombinedOutput(); err != nil {
		return fail(fmt.Errorf("%w: %s", err, out))
	}
	return redistest.Main(m, redistest.Options{}, func(s *redistest.Server) { redis = s })
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
