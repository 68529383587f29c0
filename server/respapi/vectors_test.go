package respapi

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm/vectors"
)

// The library's transcripts of the token bucket mean the same through this door, as
// far as they can be said here: takes and looks, under limits that redis-cell rounds
// as we do.
func TestTokenBucketThroughTheDoor(t *testing.T) {
	text, err := vectors.Files.ReadFile("token-bucket.txt")
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, s := range scenes(string(text)) {
		if !tellable(s) {
			continue
		}
		told++
		t.Run(s.title, func(t *testing.T) { tell(t, s) })
	}
	if told < 5 {
		t.Errorf("only %d scenes can be told", told)
	}
}

var vectorLine = regexp.MustCompile(
	`^at +(\S+) +(take|look) (\w+)(?: (\d+))?(?: x(\d+))?(?: every=(\w+))? +=> (?:(\d+) allowed, last )?(allowed|denied)(?: granted=\d+)? remaining=(\d+)/(\d+)(?: retry=(\S+))?(?: reset=(\S+))?$`)

// tellable reports whether all of a scene can be said in CL.THROTTLE.
func tellable(s scene) bool {
	for _, line := range s.lines {
		text, isLimit := strings.CutPrefix(line, "limit ")
		switch {
		case line == "" || line[0] == '#':
		case isLimit:
			l, err := penstock.ParseLimit(text)
			if err != nil || l.Period%(time.Duration(l.Count)*time.Microsecond) != 0 || l.Period%time.Second != 0 {
				return false
			}
		case !vectorLine.MatchString(line):
			return false
		}
	}
	return true
}

func tell(t *testing.T, s scene) {
	clock := newClock()
	began := clock.now()
	c := direct(newDoorOn(clock))
	var limit penstock.Limit
	for i, line := range s.lines {
		if text, ok := strings.CutPrefix(line, "limit "); ok {
			limit = must(penstock.ParseLimit(text)).Normal()
		}
		m := vectorLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at := began.Add(duration(m[1]))
		cost, times, allowed, got := "1", 1, 0, ""
		if m[2] == "look" {
			cost = "0"
		}
		if m[4] != "" {
			cost = m[4]
		}
		if m[5] != "" {
			times = must(strconv.Atoi(m[5]))
		}
		for n := range times {
			clock.set(at.Add(time.Duration(n) * duration(m[6])))
			got = c.reply(t, "CL.THROTTLE", m[3], fmt.Sprint(limit.Burst-1), fmt.Sprint(limit.Count), fmt.Sprint(int64(limit.Period/time.Second)), cost)
			if strings.HasPrefix(got, "*5 :0 ") {
				allowed++
			}
		}
		if want := cellReply(m); got != want {
			t.Errorf("line %d: %s\ngot  %s\nwant %s", s.line+i+1, line, got, want)
		}
		if m[7] != "" && m[7] != strconv.Itoa(allowed) {
			t.Errorf("line %d: %s\n%d allowed", s.line+i+1, line, allowed)
		}
	}
}

// cellReply returns what a decision in a transcript is in CL.THROTTLE's words.
func cellReply(m []string) string {
	limited, retry := 0, int64(-1)
	if m[8] == "denied" {
		limited = 1
		if m[11] != "never" {
			retry = seconds(duration(m[11]))
		}
	}
	return fmt.Sprintf("*5 :%d :%s :%s :%d :%d", limited, m[10], m[9], retry, seconds(duration(m[12])))
}

// duration reads a transcript's, in which there are days.
func duration(text string) time.Duration {
	if text == "" {
		return 0
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		return time.Duration(must(strconv.Atoi(days))) * 24 * time.Hour
	}
	return must(time.ParseDuration(text))
}
