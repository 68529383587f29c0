package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

func TestPicturesMatchResults(t *testing.T) {
	for _, p := range pictures {
		text := p.text("../results")
		if text == "" {
			continue
		}
		got, err := os.ReadFile(filepath.Join("../../docs/images", p.name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != text {
			t.Errorf("docs/images/%s is not what bench/results says; run: cd bench && go run ./plots", p.name)
		}
		translated, err := os.ReadFile(filepath.Join("../../docs/images", chineseFolder, p.name))
		if want := chinese.Replace(text); want != text && (err != nil || string(translated) != want) {
			t.Errorf("docs/images/%s/%s is not current: %v; run: cd bench && go run ./plots", chineseFolder, p.name, err)
		}
	}
}

func TestPicturesAreWellFormed(t *testing.T) {
	for _, p := range pictures {
		d := xml.NewDecoder(strings.NewReader(p.text("../results")))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", p.name, err)
			}
		}
	}
}

// The lanes must show what the bounds say: a fixed window admits nearly twice its
// count around an edge, a log does not.
func TestAlgorithmsPictureShowsBounds(t *testing.T) {
	for text, want := range map[string]int64{"10/1s fixed-window": 19, "10/1s sliding-log": 10, "10/1s rolling-window": 10, "10/1s leaky-bucket": 10} {
		if most := simulate(text).MostInPeriod; most != want {
			t.Errorf("%s: most in one second is %d, want %d", text, most, want)
		}
	}
}

func TestDrawOutageRejectsNoOutage(t *testing.T) {
	if err := harness.Try(func() { drawOutage([][]string{{"0.0", "1", "100", "0"}}) }); err == nil {
		t.Error("samples without an outage are drawn")
	}
}

func TestDrawRealOverloadNamesEachLimiter(t *testing.T) {
	const which = "computes, GOMAXPROCS=1"
	text := drawRealOverload([][]string{{which, "penstock", "0.8", "0.79"}, {which, "penstock", "10", "0.91"}, {"waits", "other", "2", "1"}})
	if !strings.Contains(text, "penstock") || strings.Contains(text, "other") {
		t.Errorf("want a line of penstock, and none of another case:\n%s", text)
	}
	if err := harness.Try(func() { drawRealOverload(nil) }); err == nil {
		t.Error("no samples are drawn")
	}
}

func TestDrawOverloadRejectsMissingCase(t *testing.T) {
	if err := harness.Try(func() { drawOverload([][]string{{"busy", "penstock", "500", "500"}}, "idle", "title") }); err == nil {
		t.Error("a case without samples is drawn")
	}
}
