//go:build integration

package httpapi_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The functions on the page return a decision for 200 and 429, allow if the daemon
// cannot be reached or cannot decide, and fail if the request is invalid.
func TestIntegrationHTTPPageFunctions(t *testing.T) {
	for _, language := range []struct{ fence, file, program, calls string }{
		{"js", "take.mjs", "node", `
const show = (a) => console.log(a.allowed, Math.ceil(a.retry_after ?? -1));
show(await take({ key: "k", limit: "1/1m" }));
show(await take({ key: "k", limit: "1/1m" }));
show(await take({ key: "k", limit: "1/1m", cost: 2 }));
await take({ key: "k", limit: "1/1minite" }).catch((error) => console.log(error.message.trim()));
`},
		{"python", "take.py", "python3", `
def show(a): print(str(a["allowed"]).lower(), -1 if a["retry_after"] is None else a["retry_after"])
show(take(key="k", limit="1/1m"))
show(take(key="k", limit="1/1m"))
show(take(key="k", limit="1/1m", cost=2))
try: take(key="k", limit="1/1minite")
except ValueError as error: print(str(error).strip())
`},
	} {
		t.Run(language.program, func(t *testing.T) {
			snippets := pageBlocks(t, language.fence)
			got := runScript(t, language.program, language.file, snippets[0]+language.calls, servePage(t))
			want := regexp.MustCompile(`^true 0\nfalse 60\nfalse -1\n\{"type":.*"pointer":"#/limit"\}\n$`)
			if !want.MatchString(got) {
				t.Errorf("printed\n%swant %v", got, want)
			}
			both := snippets[0] + "\n" + snippets[1]
			address := servePage(t)
			for i, want := range []string{"", "", "429, Retry-After: 30\n"} {
				if got := runScript(t, language.program, language.file, both, address); !strings.HasPrefix(got, want) || want == "" && got != "" {
					t.Errorf("call %d printed %q, want %q", i, got, want)
				}
			}
			allowed := strings.SplitAfter(language.calls, "\n")[:3]
			for _, address := range []string{freeAddress(t), strings.TrimPrefix(unavailableServer(t), "http://")} {
				got := runScript(t, language.program, language.file, snippets[0]+strings.Join(allowed, ""), address)
				if got != "true 0\n" {
					t.Errorf("without a decision it printed %q, want it to allow", got)
				}
			}
		})
	}
}

func unavailableServer(t *testing.T) string {
	return serve(t, newServer(t, newEngine(t, unavailableStore, nil), nil))
}

// pageBlocks returns the two blocks of a language on the page.
func pageBlocks(t *testing.T, language string) (blocks []string) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```\n").FindAllStringSubmatch(readPage(t), -1) {
		blocks = append(blocks, m[1])
	}
	if len(blocks) != 2 {
		t.Fatalf("the page has %d blocks in %s, want a function and its use", len(blocks), language)
	}
	return blocks
}

// patient raises the timeouts on the page from a second to a minute, for a starved machine: a
// server that is late would be taken for one that cannot be reached.
var patient = strings.NewReplacer("AbortSignal.timeout(1000)", "AbortSignal.timeout(60_000)", "timeout=1)", "timeout=60)")

// runScript runs a program from the page against a server and returns what it prints.
func runScript(t *testing.T, program, file, text, address string) string {
	t.Helper()
	file = filepath.Join(t.TempDir(), file)
	slow := patient.Replace(text)
	if slow == text {
		t.Fatalf("%s: the page has no timeout of a second", program)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(slow, pageAddress, address)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, file).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v (make setup-integration installs it)\n%s", program, err, out)
	}
	return string(out)
}
