package respcheck

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

// command returns a command as rueidis sends it.
func command(words ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.String()
}

var (
	hello3       = command("HELLO", "3")
	hello2       = command("HELLO", "2")
	evalsha      = command("EVALSHA", strings.Repeat("a", 40), "1", "k", "1", "*1\r\n$4\r\nPING\r\n", "")
	ping         = command("PING")
	subscribes   = command("SUBSCRIBE", "+sentinel", "+switch-master")
	unsubscribes = command("UNSUBSCRIBE", "+sentinel", "+switch-master")
	getMaster    = command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "m")
	role         = command("ROLE")
)

func event(kind string, channel, text string) string {
	return fmt.Sprintf("%s3\r\n$7\r\nmessage\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", kind, len(channel), channel, len(text), text)
}

func confirm(kind, what, channel string) string {
	return fmt.Sprintf("%s3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n:1\r\n", kind, len(what), what, len(channel), channel)
}

// conversations are what a client sends and a server answers, in turn.
var conversations = map[string][]string{
	"handshake":       {hello3 + command("CLIENT", "SETINFO", "LIB-NAME", "x"), "%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nmodules\r\n*0\r\n+OK\r\n"},
	"pipeline":        {evalsha + evalsha + evalsha, ":1\r\n*2\r\n:1\r\n:-5\r\n-NOSCRIPT No matching script.\r\n"},
	"strings":         {ping + ping + ping, "$5\r\na\r\nbc\r\n$0\r\n\r\n$-1\r\n"},
	"RESP3":           {strings.Repeat(ping, 6), "_\r\n#t\r\n,1.5\r\n(123456789012345678901234567890\r\n=6\r\ntxt:hi\r\n~1\r\n:1\r\n"},
	"attributes":      {ping, "|1\r\n+ttl\r\n:1\r\n*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n*0\r\n"},
	"nil array":       {ping, "*-1\r\n"},
	"pushes":          {"", ">2\r\n$3\r\nfoo\r\n*1\r\n:1\r\n", ping, ">1\r\n$1\r\na\r\n+PONG\r\n>2\r\n$3\r\nfoo\r\n:1\r\n"},
	"redirections":    {evalsha + evalsha, "-MOVED 1 127.0.0.1:7000\r\n-ASK 1 127.0.0.1:7000\r\n"},
	"subscription":    {hello3 + subscribes + getMaster, "%0\r\n" + confirm(">", "subscribe", "+sentinel") + confirm(">", "subscribe", "+switch-master") + "*2\r\n$1\r\nh\r\n$1\r\n1\r\n" + event(">", "+switch-master", "m a 1 b 2")},
	"unsubscription":  {hello3 + unsubscribes + ping + role, "%0\r\n" + confirm(">", "unsubscribe", "a") + "+PONG\r\n*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"},
	"subscription, 2": {hello2 + subscribes, "*0\r\n" + confirm("*", "subscribe", "a") + confirm("*", "subscribe", "b") + event("*", "+sentinel", "sentinel x h 1 @ m h 1"), ping, "*2\r\n$4\r\npong\r\n$0\r\n\r\n"},
	"no permission":   {hello3 + unsubscribes + ping + subscribes + role, "%0\r\n-NOPERM unsubscribe\r\n+PONG\r\n-NOPERM subscribe\r\n-NOPERM role\r\n"},
	"no such master":  {getMaster, "*-1\r\n"},
	"large reply":     {evalsha, "*1000\r\n" + strings.Repeat("$20\r\n01234567890123456789\r\n", 1000)},
	"large text":      {evalsha, "$20000\r\n" + strings.Repeat("x", 20000) + "\r\n"},
	"large command":   {command("EVAL", strings.Repeat("x", 70_000), "0") + ping, ":1\r\n+PONG\r\n"},
}

// converse lets a checker see a conversation in pieces of random length, up to the given one.
func converse(c *Checker, parts []string, longest int) error {
	random := rand.New(rand.NewPCG(1, uint64(longest)))
	for i, part := range parts {
		for len(part) > 0 {
			n := min(1+random.IntN(longest), len(part))
			if i%2 == 0 {
				c.Sent([]byte(part[:n]))
			} else if err := c.Received([]byte(part[:n])); err != nil {
				return err
			}
			part = part[n:]
		}
	}
	return nil
}

func TestCheckerPassesConversations(t *testing.T) {
	for name, parts := range conversations {
		for _, longest := range []int{1, 3, 100, 1 << 16, 1 << 30} {
			c := New()
			if err := converse(c, parts, longest); err != nil {
				t.Errorf("%s, in pieces of up to %d bytes: %v", name, longest, err)
			}
			if c.answered != c.sent.Load() || c.confirmations != 0 || c.next.Load() != none || len(c.special) > 0 {
				t.Errorf("%s: %d commands, %d answered, %d confirmations are missing, and %v", name, c.sent.Load(), c.answered, c.confirmations, c.special)
			}
		}
	}
}

// hostile are what a client sends, and what a server must not answer.
var hostile = map[string][2]string{
	"unasked status":           {"", "+OK\r\n"},
	"one reply too many":       {ping, "+PONG\r\n:1\r\n"},
	"streamed text":            {ping, "$?\r\n"},
	"streamed array":           {ping, "*?\r\n"},
	"end of a stream":          {ping, ".\r\n"},
	"blob error":               {ping, "!5\r\nMOVED\r\n"},
	"unknown type":             {ping, "HTTP/1.1 200 OK\r\n"},
	"negative array":           {ping, "*-5\r\n"},
	"negative map":             {ping, "%-1\r\n"},
	"negative push":            {ping, ">-1\r\n"},
	"negative text":            {ping, "$-2\r\n"},
	"overflowing length":       {ping, "$18446744073709551617\r\n"},
	"no length":                {ping, "$\r\n"},
	"length with a sign":       {ping, "$+5\r\n"},
	"huge text":                {ping, "$2147483647\r\n"},
	"huge array":               {ping, "*2147483647\r\n"},
	"huge map":                 {ping, "%1000000000\r\n"},
	"array beyond 32 bits":     {ping, "*33554432\r\n"},
	"map beyond 32 bits":       {ping, "%33554432\r\n"},
	"arrays of arrays":         {ping, strings.Repeat("*300000\r\n", 2)},
	"deep array":               {ping, strings.Repeat("*1\r\n", maxDepth+1)},
	"many texts":               {ping, "*100\r\n" + strings.Repeat("$1000000\r\n"+strings.Repeat("x", 1000000)+"\r\n", 34)},
	"long line":                {ping, "+" + strings.Repeat("x", maxLine)},
	"line without CR":          {ping, "+PONG\n"},
	"empty line":               {ping, "\r\n"},
	"text too long":            {ping, "$1\r\nabc"},
	"null with text":           {ping, "_a\r\n"},
	"odd boolean":              {ping, "#\r\n"},
	"push in an array":         {ping, "*1\r\n>1\r\n"},
	"redirection to nowhere":   {ping, "-MOVED 1\r\n"},
	"asking nobody":            {ping, "-ASK\r\n"},
	"unasked confirmation":     {ping, confirm(">", "subscribe", "a")},
	"two confirmations of one": {command("SUBSCRIBE", "a"), strings.Repeat(confirm(">", "subscribe", "a"), 2)},
	"confirmations mixed":      {command("HELLO", "3") + subscribes, "%0\r\n" + confirm(">", "subscribe", "a") + confirm(">", "unsubscribe", "a") + confirm(">", "subscribe", "b")},
	"queued subscription":      {hello3 + subscribes, "%0\r\n-QUEUED\r\n"},
	"status of a subscription": {hello3 + subscribes, "%0\r\n+OK\r\n"},
	"no pong":                  {unsubscribes + ping, "-NOPERM x\r\n+OK\r\n"},
	"unasked after RESP2":      {subscribes, confirm("*", "subscribe", "a") + "+OK\r\n"},
	"no role":                  {role, "*0\r\n"},
	"half an address":          {getMaster, "*1\r\n$1\r\na\r\n"},
	"nested address":           {getMaster, "*1\r\n*2\r\n+a\r\n+b\r\n"},
	"short event":              {"", event(">", "+switch-master", "m a 1 b")},
	"event with an attribute":  {"", strings.Replace(event(">", "+switch-master", "m a 1 b"), "\r\n", "\r\n|1\r\n+a\r\n+b\r\n", 1)},
	"nested event":             {"", ">3\r\n+message\r\n+a\r\n*0\r\n"},
	"long event":               {"", event(">", "+sentinel", strings.Repeat("x ", maxWatched/2))},
}

func TestCheckerRefuses(t *testing.T) {
	for name, parts := range hostile {
		for _, longest := range []int{1, 5, 1 << 30} {
			if longest < len(parts[1])/100_000 {
				continue // takes too long
			}
			c := New()
			err := converse(c, parts[:], longest)
			if problem := new(Error); !errors.As(err, &problem) {
				t.Errorf("%s, in pieces of up to %d bytes: got %v, want an error", name, longest, err)
			}
			if again := c.Received([]byte("+OK\r\n")); !errors.Is(again, err) {
				t.Errorf("%s: got %v afterwards, want the same error", name, again)
			}
		}
	}
}

// wellFormed draws a reply, and how large it is.
func wellFormed(t *rapid.T, depth int) string {
	text := rapid.SliceOfN(rapid.SampledFrom([]byte("ab\r\n*$:>|+-0123 ")), 0, 30).Draw(t, "text")
	line := strings.NewReplacer("\r", "", "\n", "").Replace(string(text))
	element := rapid.IntRange(0, 7).Draw(t, "type")
	if depth == 0 {
		element %= 5
	}
	switch element {
	case 0:
		return "$" + fmt.Sprint(len(text)) + "\r\n" + string(text) + "\r\n"
	case 1:
		return rapid.SampledFrom([]string{"+", "-", ",", "("}).Draw(t, "simple") + line + "\r\n"
	case 2:
		return fmt.Sprintf(":%d\r\n", rapid.Int64().Draw(t, "number"))
	case 3:
		return rapid.SampledFrom([]string{"_\r\n", "#t\r\n", "#f\r\n", "$-1\r\n", "*-1\r\n"}).Draw(t, "constant")
	case 4:
		return "=" + fmt.Sprint(4+len(text)) + "\r\ntxt:" + string(text) + "\r\n"
	}
	kind, n := rapid.SampledFrom([]string{"*", "~", "%", "|"}).Draw(t, "kind"), rapid.IntRange(0, 4).Draw(t, "length")
	reply := fmt.Sprintf("%s%d\r\n", kind, n)
	if kind == "%" || kind == "|" {
		n *= 2
	}
	for range n {
		reply += wellFormed(t, depth-1)
	}
	if kind == "|" {
		reply += wellFormed(t, depth-1)
	}
	return reply
}

func TestCheckerPassesWellFormed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replies := rapid.IntRange(1, 5).Draw(t, "replies")
		parts := []string{strings.Repeat(evalsha, replies), ""}
		for range replies {
			parts[1] += wellFormed(t, 4)
		}
		c := New()
		if err := converse(c, parts, rapid.IntRange(1, 60).Draw(t, "longest")); err != nil || c.answered != int64(replies) {
			t.Fatalf("%q: %d of %d answered, %v", parts[1], c.answered, replies, err)
		}
		if err := c.Received([]byte(":1\r\n")); err == nil {
			t.Fatalf("%q: passed one reply more", parts[1])
		}
	})
}

// Whatever arrives, in whatever pieces: the checker decides the same, and keeps little of it.
func FuzzChecker(f *testing.F) {
	for _, parts := range conversations {
		if len(parts[1]) < 1000 {
			f.Add(parts[0], parts[1], 3)
		}
	}
	for _, parts := range hostile {
		if len(parts[1]) < 100_000 {
			f.Add(parts[0], parts[1], 5)
		}
	}
	f.Fuzz(func(t *testing.T, sent, received string, longest int) {
		parts, whole, split := []string{sent, received}, New(), New()
		err := converse(whole, parts, 1<<30)
		splitErr := converse(split, parts, 1+int(uint(longest)%100))
		if fmt.Sprint(err) != fmt.Sprint(splitErr) || whole.answered != split.answered {
			t.Errorf("%v after %d replies, in pieces %v after %d", err, whole.answered, splitErr, split.answered)
		}
		for _, c := range []*Checker{whole, split} {
			if c.answered > c.sent.Load() || len(c.line) > maxLine || len(c.watched) > maxWatched || c.budget < 0 && err == nil {
				t.Errorf("%d answers to %d commands, a line of %d bytes, %d bytes watched, budget %d",
					c.answered, c.sent.Load(), len(c.line), len(c.watched), c.budget)
			}
		}
	})
}

// batch is what the store sends for some calls that share a script, and the reply.
var batch = [2][]byte{
	[]byte(command(append([]string{"EVALSHA", strings.Repeat("a", 40), "16"}, strings.Fields(strings.Repeat("p:{12345678}tb 100 3600000 1 ", 16))...)...)),
	[]byte("*16\r\n" + strings.Repeat(":123456789\r\n", 16)),
}

func TestCheckerAllocatesNothing(t *testing.T) {
	c := New()
	allocs := testing.AllocsPerRun(100, func() {
		c.Sent(batch[0])
		if err := c.Received(batch[1]); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations for a batch, want none", allocs)
	}
}

func BenchmarkChecker(b *testing.B) {
	take := [2][]byte{[]byte(evalsha), []byte(":123456789\r\n")}
	for name, parts := range map[string][2][]byte{"take": take, "batch of 16": batch} {
		b.Run(name, func(b *testing.B) {
			c := New()
			for b.Loop() {
				c.Sent(parts[0])
				if err := c.Received(parts[1]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
