package script

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest/redisproxy"
)

// Proxies that read the text of scripts accept ours. One that knows no command of Redis 7 refuses those that
// ask for the expiry of a key, which only requests under an ID and several at once need.
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
		newer := strings.HasSuffix(file, "-once.lua") || strings.HasSuffix(file, "-once-batch.lua") || strings.HasSuffix(file, "take-all.lua")
		if refusal := redisproxy.CheckScript(string(text), 60); refusal != "" && !newer {
			t.Errorf("%s: %s", file, refusal)
		}
	}
}
