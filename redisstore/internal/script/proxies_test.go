package script

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest/redisproxy"
)

// Proxies that read the text of scripts accept ours. One that knows no command of Redis 7 accepts them without
// the one that asks for the expiry of a key.
func TestScriptsPassCheckOfProxies(t *testing.T) {
	files, err := filepath.Glob("testdata/*.lua")
	if err != nil || len(files) < len(Steps()) {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if refusal := redisproxy.CheckScript(string(text), 70); refusal != "" {
			t.Errorf("%s: %s", file, refusal)
		}
		if refusal := redisproxy.CheckScript(strings.ReplaceAll(string(text), AskExpiry, "nil"), 60); refusal != "" {
			t.Errorf("%s: %s", file, refusal)
		}
	}
}
