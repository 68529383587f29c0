package main

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
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
