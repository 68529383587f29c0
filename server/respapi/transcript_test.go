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

// TestTranscripts runs the transcripts in testdata on both stores. A file has several,
// each with a title after == and an empty store:
//
//	at 2s               sets the clock, relative to the start of the transcript
//	elsewhere           continues as a client on another machine
//	rules               loads rules.yaml
//	> get k             sends a command in RESP
//	>> "PING\r\n"       sends bytes
//	*5 :0 :16           is the expected reply; bulk strings are in quotes
//	closed              expects the end of the connection
//
// Consecutive commands are sent as a pipeline. The token is "secret".
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
		for _, tr := range parseTranscripts(string(text)) {
			at := fmt.Sprintf("%s:%d", name, tr.line)
			t.Run(tr.title+" memory", func(t *testing.T) {
				c := newFakeClock()
				tr.run(t, at, c, c.memory(), c.set)
			})
			t.Run(tr.title+" redis", func(t *testing.T) {
				c := newFakeClock()
				redisServer.Clock.Set(c.now())
				tr.run(t, at, c, newRedisStore(t, redisServer), func(now time.Time) {
					c.set(now)
					redisServer.Clock.Set(now)
				})
			})
		}
	}
}

// A transcript is the commands of a client and the expected replies.
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
			tr := &all[len(all)-1]
			tr.lines = append(tr.lines, strings.TrimSpace(line))
		}
	}
	return all
}

func (tr *transcript) run(t *testing.T, at string, c *fakeClock, store penstock.Store, set func(time.Time)) {
	start := c.now()
	server := newServer(t, store, c, &engine.Options{Token: "secret", RequestLimits: noCeilings}, nil)
	local, remote := newTestListener(t), newTestListener(t)
	remote.from = remoteAddr
	serve(t, server, local)
	serve(t, server, remote)
	client, replies := local.dial(t), 0
	var sent strings.Builder
	for i, line := range tr.lines {
		word, rest, _ := strings.Cut(line, " ")
		if sent.Len() > 0 && word != ">" && word != ">>" {
			client.send(sent.String())
			sent.Reset()
		}
		switch {
		case line == "" || line[0] == '#':
		case word == "at":
			set(start.Add(must(time.ParseDuration(rest))))
		case word == "rules":
			server.engine.SetRules(testRules(t))
		case word == "elsewhere":
			client = remote.dial(t)
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
		t.Fatalf("%s: the transcript expects no reply", at)
	}
}

// splitWords splits a line like an inline command.
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
