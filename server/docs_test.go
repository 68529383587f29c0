package server_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server"
)

var update = flag.Bool("update", false, "write the generated tables into docs/configuration.md")

const (
	configurationPage = "../docs/configuration.md"
	metricsPage       = "../docs/metrics.md"
	settingsBegin     = "<!-- settings: go test ./server -run Configuration -update -->\n"
	settingsEnd       = "<!-- end of settings -->\n"
)

func TestConfigurationPageMatchesSettings(t *testing.T) {
	page, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), settingsBegin)
	table, after, closed := strings.Cut(rest, settingsEnd)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table: want lines %q and %q", configurationPage, settingsBegin, settingsEnd)
	}
	want := settingsTable()
	if table == want {
		return
	}
	if !*update {
		t.Fatalf("the table in %s is not the one in the code; with -update this test writes it:\n%s", configurationPage, want)
	}
	if err := os.WriteFile(configurationPage, []byte(before+settingsBegin+want+settingsEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func settingsTable() string {
	var b strings.Builder
	group := ""
	for _, s := range server.Settings {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, "\n### %s\n\n| flag | variable | default | what it does |\n|---|---|---|---|\n", group)
		}
		flag := "--" + s.Name
		if s.Kind != "" {
			flag += " " + strings.ToUpper(s.Kind)
		}
		value := ""
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", flag, s.Env(), value, s.Help)
	}
	b.WriteString("\n")
	return b.String()
}

func TestDeployFilesAreValid(t *testing.T) {
	c, err := server.LoadConfig(map[string]string{"config": "../deploy/penstock.yaml"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	unit, err := os.ReadFile("../deploy/penstock.service")
	if err != nil {
		t.Fatal(err)
	}
	stop := regexp.MustCompile(`(?m)^TimeoutStopSec=(\S+)$`).FindSubmatch(unit)
	if d, err := time.ParseDuration(string(stop[1])); err != nil || d <= c.ShutdownDelay+c.ShutdownGrace {
		t.Errorf("systemd kills after %s, but a shutdown takes up to %v", stop[1], c.ShutdownDelay+c.ShutdownGrace)
	}
	if _, err := rules.Load("../examples/rules.yaml", nil); err != nil {
		t.Error(err)
	}
}
