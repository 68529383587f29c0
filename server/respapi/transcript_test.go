package respapi

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// The files in testdata tell what a client sees. A scene begins with ==, on an empty
// store. Then
//
//	at 2s               sets the clock, counted from the scene's beginning
//	elsewhere           goes on as a client on another machine
//	> get k             sends a command, in RESP's own form
//	>> "PING\r\n"       sends bytes as they are
//	*5 :0 :16           is a reply; texts are in quotes
//	closed              is the end of the connection
//
// Commands that follow one another are sent at once. The token is "secret".

func TestTranscripts(t *testing.T) {
	names, err := fs.Glob(os.DirFS("testdata"), "*.txt")
	if err != nil || len(names) == 0 {
		t.Fatalf("found %d transcripts: %v", len(names), err)
	}
	for _, name := range names {
		text, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range parseTranscripts(string(text)) {
			at := fmt.Sprintf("%s:%d", name, s.line)
			t.Run(s.title+" in memory", func(t *testing.T) {
				c := newFakeClock()
				s.run(t, at, c, c.memory(), c.set)
			})
			t.Run(s.title+" on redis", func(t *testing.T) {
				c := newFakeClock()
				heldRedis.Clock.Set(c.now())
				s.run(t, at, c, newRedisStore(t, heldRedis), func(now time.Time) {
					c.set(now)
					heldRedis.Clock.Set(now)
				})
			})
		}
	}
}

// A transcript is a story about one client.
type transcript struct {
	title string
	line  int // from 1, of the title
	lines []string
}

func parseTranscripts(text string) (all []transcript) {
	for i, line := range strings.Split(text, "\n") {
		if title, ok := strings.CutPrefix(line, "== "); ok {
			all = append(all, transcript{title: title, line: i + 1})
		} else if len(all) > 0 {
			s := &all[len(all)-1]
			s.lines = append(s.lines, strings.TrimSpace(line))
		}
	}
	return all
}

func (s *transcript) run(t *testing.T, at string, c *fakeClock, store penstock.Store, set func(time.Time)) {
	began := c.now()
	door := newServer(t, store, c, &engine.Options{Token: "secret"}, nil)
	here, there := newTestListener(t), newTestListener(t)
	there.from = remoteAddr
	serve(t, door, here)
	serve(t, door, there)
	client, replies := here.dial(t), 0
	var sent strings.Builder
	for i, line := range s.lines {
		word, rest, _ := strings.Cut(line, " ")
		if sent.Len() > 0 && word != ">" && word != ">>" {
			client.send(sent.String())
			sent.Reset()
		}
		switch {
		case line == "" || line[0] == '#':
		case word == "at":
			set(began.Add(must(time.ParseDuration(rest))))
		case word == "elsewhere":
			client = there.dial(t)
		case word == ">":
			sent.WriteString(encode(splitWords(t, rest)...))
		case word == ">>":
			sent.WriteString(must(strconv.Unquote(rest)))
		default:
			replies++
			if got := strings.TrimSpace(client.read()); got != line {
				t.Fatalf("%s+%d:\ngot  %s\nwant %s", at, i+1, got, line)
			}
		}
	}
	if replies == 0 {
		t.Fatalf("%s: nothing is expected of the scene", at)
	}
}

// splitWords splits a line as people type it.
func splitWords(t *testing.T, line string) []string {
	var p parser
	if n, err := p.nextInline([]byte(line + "\n")); err != nil || n == 0 {
		t.Fatalf("%s: %v", line, err)
	}
	list := make([]string, len(p.args))
	for i, arg := range p.args {
		list[i] = string(arg)
	}
	return list
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
