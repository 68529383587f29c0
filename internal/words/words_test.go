package words

import (
	"slices"
	"strings"
	"testing"
)

func TestSplitReturnsKeysAndValues(t *testing.T) {
	for text, want := range map[string][]Word{
		"":          nil,
		" \t\r\n":   nil,
		"a":         {{1, "a", "a", ""}},
		" a\tb=1\n": {{2, "a", "a", ""}, {4, "b=1", "b", "1"}},
		"a=":        {{1, "a=", "a", ""}},
		"=1":        {{1, "=1", "", "1"}},
		`a="b c" d`: {{1, `a="b c"`, "a", "b c"}, {9, "d", "d", ""}},
		"a=`\"` b":  {{1, "a=`\"`", "a", `"`}, {7, "b", "b", ""}},
		`"a b"`:     {{1, `"a`, `"a`, ""}, {4, `b"`, `b"`, ""}}, // only values are quoted
	} {
		if got, bad := Split(text); bad != nil || !slices.Equal(got, want) {
			t.Errorf("Split(%q) = %+v, %+v, want %+v", text, got, bad, want)
		}
	}
}

func TestSplitNamesTheWordThatItCannotRead(t *testing.T) {
	for text, want := range map[string]Problem{
		"x a=b=c":   {Word{3, "a=b=c", "a", "b=c"}, `want quotes, as in a="b=c"`},
		"x a=\xff":  {Word{3, "a=\xff", "a", "\xff"}, `want quotes, as in a="\xff"`},
		`x a="b c`:  {Word{3, `a="b`, "a", `"b`}, "want a closing quote, and between the quotes a string as in Go"},
		`x a="b"c `: {Word{3, `a="b"`, "a", "b"}, "want a space after the closing quote"},
	} {
		if got, bad := Split(text); got != nil || bad == nil || *bad != want {
			t.Errorf("Split(%q) = %+v, %+v, want %+v", text, got, bad, want)
		}
	}
}

func TestNumberReadsDecimalOnly(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "-5": -5, "9223372036854775807": 1<<63 - 1} {
		if n, err := Number(text); n != want || err != nil {
			t.Errorf("Number(%q) = %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "+5", "1e3", "1_000", " 1", "9223372036854775808"} {
		if n, err := Number(text); err == nil {
			t.Errorf("Number(%q) = %d, want an error", text, n)
		}
	}
}

// A quoted value is read as it was, as one word.
func FuzzQuote(f *testing.F) {
	for _, value := range []string{"", "a", "a b", "\"", "`", "\xff", "a=b", "日本", "\u00a0"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		ws, bad := Split("first key=" + Quote(value) + " last")
		if bad != nil || len(ws) != 3 || ws[1].Value != value || ws[1].Key != "key" {
			t.Errorf("%q became %+v, %+v", value, ws, bad)
		}
	})
}

// Any text is split or refused, and what is split is all of it.
func FuzzSplit(f *testing.F) {
	f.Add("10/s burst=5 name=\"a b\"")
	f.Fuzz(func(t *testing.T, text string) {
		ws, bad := Split(text)
		if bad != nil {
			return
		}
		var texts []string
		for _, w := range ws {
			if !strings.HasPrefix(text[w.Column-1:], w.Text) {
				t.Errorf("%q: no %q at column %d", text, w.Text, w.Column)
			}
			texts = append(texts, w.Text)
		}
		if again, bad := Split(strings.Join(texts, " ")); bad != nil || len(again) != len(ws) {
			t.Errorf("%q became %d words, and then %d, %+v", text, len(ws), len(again), bad)
		}
	})
}
