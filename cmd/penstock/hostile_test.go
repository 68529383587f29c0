package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/penstock-io/penstock/redisstore"
)

// hostile is what a terminal could act on: escapes, other control characters, a new line, a change of direction, and bytes
// that are no UTF-8.
var hostile = []string{"\x1b]0;owned\x07", "\u009b31m", "a\nrule  forged", "\u202egnp.exe", "\xff\xfe", "\r\x7f\x08"}

// No command prints a key, a rule, a reason or a name raw, in a table, in JSON or in an error.
func TestCommandsPrintNothingThatATerminalActsOn(t *testing.T) {
	d := serveInProcess(t, "memory:", alsoRules)
	for _, text := range hostile {
		for _, words := range [][]string{
			{"take", "--domain", "sms", "phone=" + text},
			{"take", text, "--limit", "10/1h"},
			{"take", "--domain", text, "phone=1"},
			{"settle", "--domain", "sms", "phone=" + text, "--id", text, "--cost", "1"},
			{"peek", "--domain", "sms", "phone=" + text},
			{"peek", "--domain", "sms", "phone=" + text, "--json"},
			{"peek", "--rule", text, "1"},
			{"peek", "--domain", text, text + "=1"},
			{"peek", text, "--limit", text},
			{"refund", "--domain", "sms", "phone=" + text, "--reason", "test"},
			{"reset", text, "--limit", "10/1h", "--reason", text},
			{"override", "set", "sms/phone", text, "ban", "--reason", text},
			{"override", "set", "--domain", "sms", "phone=" + text, "7/30d", "--reason", text},
			{"override", "set", text, "1", text, "--reason", "test"},
			{"override", "list"},
			{"override", "list", "--json"},
			{"override", "export"},
			{"override", "list", "--rule", "sms/phone", "--key", text},
			{"override", "import", text},
			{"peek", "--domain", "sms", "phone=" + text},
			{"override", "delete", "sms/phone", text, "--reason", text},
			{"override", "delete", "--domain", "sms", text + "=1", "--reason", text},
			{"top", "--once"},
			{"top", "--once", "--json"},
			{"top", "--once", "--view", "keys", "--by", "denied"},
			{"top", "--once", "--view", text},
			{text},
		} {
			_, out := runCommand(d, words...)
			for _, line := range strings.Split(out, "\n") {
				if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }) || strings.HasPrefix(line, "rule  forged") {
					t.Errorf("%q prints %q", words, line)
				}
			}
		}
	}
}

// Files that others have written are as little trusted: logs, rules of Sentinel, and the words of a database.
func TestCommandsPrintNothingOfFilesThatATerminalActsOn(t *testing.T) {
	dir := t.TempDir()
	rules, log, sentinel := filepath.Join(dir, "rules.yaml"), filepath.Join(dir, "a.log"), filepath.Join(dir, "sentinel.json")
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(rules, "domain: sms\ndescriptors:\n- {key: phone, limit: 1/1m}\n")
	for _, text := range hostile {
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		write(log, strings.Repeat(`{"time":"2026-11-19T20:00:00Z","phone":`+string(quoted)+"}\n", 3))
		write(sentinel, `[{"resource":`+string(quoted)+`,"count":5,"grade":1,"strategy":1},{"resource":"a","count":5,"grade":1}]`)
		var all strings.Builder
		for _, words := range [][]string{
			{"replay", "--rules", rules, "--entry", "phone=field:phone", log},
			{"replay", "--rules", rules, "--entry", "phone=field:phone", "--json", log},
			{"rules", "import", "--from", "sentinel", "--domain", "sms", sentinel},
		} {
			before := all.Len()
			if code := run(words, &all, &all); code > 1 || all.Len() == before {
				t.Fatalf("%q: exit code %d, printed %q", words, code, all.String()[before:])
			}
		}
		checkFileNamed(t, &all, text+".yaml")
		printFindings(&all, []redisstore.Finding{{What: "table", State: redisstore.Broken, Detail: text, Advice: "none"}})
		for _, line := range strings.Split(all.String(), "\n") {
			if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }) || strings.HasPrefix(line, "rule  forged") {
				t.Errorf("%q: printed %q", text, line)
			}
		}
	}
}

// checkFileNamed prints what check and explain say of a file of rules with a name, in which something is wrong, and then
// without effect. Not every system allows all names.
func checkFileNamed(t *testing.T, to *strings.Builder, name string) {
	t.Helper()
	dir := t.TempDir()
	for _, c := range []struct {
		rules string
		code  int
	}{
		{"domain: a\ndescriptors:\n- {key: b, limit: 1/1s}\n- {key: b, limit: x}\n", exitNegative},
		{"domain: a\ndescriptors:\n- {key: b, limit: 1/1s}\n- {key: c, shadow_mode: true}\n", exitOK}, // with a warning
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(c.rules), 0o600); err != nil {
			return
		}
		if code := run([]string{"rules", "check", dir}, to, to); code != c.code {
			t.Errorf("rules check: exit code %d, want %d", code, c.code)
		}
	}
	if code := run([]string{"rules", "explain", dir, "a", "b=1"}, to, to); code != exitOK {
		t.Errorf("rules explain: exit code %d", code)
	}
}

// A file gets each key as it is, for import; a terminal gets nothing that it acts on.
func TestExportedCSVIsHarmlessOnATerminal(t *testing.T) {
	text := "rule,key,limit\n"
	for _, key := range hostile {
		text += `shop/user,"` + key + `",ban` + "\n"
	}
	if got := textFor([]byte(text), false); string(got) != text {
		t.Errorf("a file gets %q, want %q", got, text)
	}
	got := string(textFor([]byte(text), true))
	for _, r := range got {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("a terminal gets %q", r)
		}
	}
	if !strings.HasPrefix(got, "rule,key,limit\nshop/user,") || !strings.HasSuffix(got, "ban\n") {
		t.Errorf("a terminal gets %q", got)
	}
}
