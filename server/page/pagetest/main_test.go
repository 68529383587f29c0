// Package pagetest_test opens the page of real daemons in a real browser. It is a module
// of its own, so that users of penstock do not download a browser's client.
package pagetest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/penstock-io/penstock/internal/redistest"
)

var update = flag.Bool("page.update", false, "write screenshots of the page to docs/images")

// Shared by all tests: the command that they run, a Redis of which each test has its own
// database, and a browser of which each test has its own tabs.
var (
	binary  string
	redis   *redistest.Server
	browser context.Context
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("short: the tests of the page need a browser; make page runs them")
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pagetest")
	if err != nil {
		return fail(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "penstock")
	build := exec.Command("go", "build", "-o", binary, "./cmd/penstock")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		return fail(fmt.Errorf("%w: %s", err, out))
	}
	stop, err := startBrowser()
	if err != nil {
		return fail(err)
	}
	defer stop()
	return redistest.Main(m, redistest.Options{Args: []string{"--databases", "64"}}, func(s *redistest.Server) { redis = s })
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// browsers are the programs that run without a screen, the smallest first.
var browsers = []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"}

func startBrowser() (stop func(), err error) {
	path := ""
	for _, name := range browsers {
		if path, err = exec.LookPath(name); err == nil {
			break
		}
	}
	if path == "" {
		return nil, errors.New("no browser: install chromium-headless-shell, as make page does on Debian")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WSURLReadTimeout(5*time.Minute))
	allocator, stopAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	browser = ctx
	return func() { cancel(); stopAllocator() }, chromedp.Do(ctx)
}
