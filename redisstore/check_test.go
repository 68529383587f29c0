package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/internal/redistest/redisproxy"
	"github.com/penstock-io/penstock/redisstore"
)

// checkURL returns the findings that do not work, by what they are about, and fails the test if keys are left.
func checkURL(t *testing.T, url string, servers ...*redistest.Server) map[string]redisstore.Finding {
	t.Helper()
	prefix := newPrefix()
	findings, err := redisstore.Check(t.Context(), url, &redisstore.Options{Prefix: prefix, Timeout: longTimeout})
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]redisstore.Finding{}
	for _, f := range findings {
		if f.State != redisstore.Works {
			other[f.What] = f
		}
		if (f.State == redisstore.Works) != (f.Advice == "") || f.Detail == "" || strings.ContainsFunc(f.Detail+f.Advice, unicode.IsControl) {
			t.Errorf("%+v: want a detail, and advice for what does not work", f)
		}
	}
	for _, server := range servers {
		left := slices.DeleteFunc(keys(t, server, prefix), func(key string) bool {
			return strings.Contains(key, "probe{") // on the wrong server, where no other script finds them
		})
		if len(left) > 0 {
			t.Errorf("keys are left: %q", left)
		}
	}
	return other
}

func TestCheckFindsNothingWrongWithRedis(t *testing.T) {
	t.Parallel()
	if other := checkURL(t, "redis://"+liveServer.Addr, liveServer); len(other) > 0 {
		t.Errorf("%v", other)
	}
	c := redistest.StartCluster(t)
	if other := checkURL(t, c.URL(), c.Nodes...); len(other) > 0 {
		t.Errorf("Cluster: %v", other)
	}
}

// Behind proxies all decisions are exact, and what they cost is said.
func TestCheckBehindProxies(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{startServer(t), startServer(t)}
	for _, preset := range redisproxy.Presets {
		other := checkURL(t, redisproxy.Start(t, preset, servers...).URL(), servers...)
		if other["keys"].State != redisstore.Degraded {
			t.Errorf("%s: keys: %+v, want them degraded", preset.Name, other["keys"])
		}
		for _, f := range other {
			if f.State == redisstore.Broken {
				t.Errorf("%s: %+v", preset.Name, f)
			}
		}
	}
}

func TestCheckSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--maxmemory-policy", "volatile-lru", "--maxmemory", "1gb")
	mustCommand(t, server, "ACL", "SETUSER", "reader", "on", ">pw", "~*", "+hello", "+evalsha", "+eval", "+info", "+get")
	mustCommand(t, server, "ACL", "SETUSER", "taker", "on", ">pw", "~*", "+@all", "-hset", "-append", "-getrange")
	for _, c := range []struct {
		url, what string
		state     redisstore.FindingState
		text      string
	}{
		{"redis://" + server.Addr, "eviction", redisstore.Degraded, "volatile-lru"},
		{"redis://reader:wrong@" + server.Addr, "connection", redisstore.Broken, "WRONGPASS"},
		{"redis://reader:pw@" + server.Addr, "connection", redisstore.Broken, "give the user of Redis"},
		{"redis://taker:pw@" + server.Addr, "overrides", redisstore.Broken, "give the user of Redis"},
		{"redis://taker:pw@" + server.Addr, "permits", redisstore.Broken, "give the user of Redis"},
		{"redis://taker:pw@" + server.Addr, "fleet", redisstore.Broken, "give the user of Redis"},
	} {
		f := checkURL(t, c.url, server)[c.what]
		if f.State != c.state || !strings.Contains(f.Detail+f.Advice, c.text) {
			t.Errorf("%s: %s: %+v, want %s with %q", c.url, c.what, f, c.state, c.text)
		}
	}
	findings, err := redisstore.Check(t.Context(), fmt.Sprintf("redis://127.0.0.1:%d", freePort(t)), nil)
	if !errors.Is(err, penstock.ErrUnavailable) || findings != nil {
		t.Errorf("without a server: %v, %v", findings, err)
	}
	if _, err := redisstore.Check(t.Context(), "http://localhost", nil); err == nil {
		t.Error("a URL of no Redis is accepted")
	}
}

// What needs a command is told if the user lacks it, also if only few calls make it. HELLO, PING and SCRIPT LOAD are
// optional, and only old servers need PEXPIREAT.
func TestCheckFindsEachMissingPermission(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	words := strings.Fields(redisstore.Permissions)
	if failing := failingWithout(t, server, words, ""); len(failing) > 0 {
		t.Errorf("with all: %q, want nothing wrong", failing)
	}
	var checks sync.WaitGroup // each measures round trips for two seconds
	for what, needed := range map[string]string{
		"connection": "+time +get +set +del",
		"scripts":    "+eval +evalsha +pexpiretime",
		"takes":      "+pttl +incrby",
		"permits":    "+append +setrange",
		"overrides":  "+hget +hset +hdel +hscan",
		"fleet":      "+getrange +pexpire +zadd +zcount +zrem +zrevrange +zremrangebyscore +zremrangebyrank",
		"server":     "+info",
		"":           "+hello +pexpireat +ping +script|load",
	} {
		for _, word := range strings.Fields(needed) {
			i := slices.Index(words, word)
			if i < 0 {
				t.Errorf("%s is no permission", word)
				continue
			}
			words = slices.Delete(words, i, i+1)
			checks.Go(func() {
				failing := failingWithout(t, server, strings.Fields(redisstore.Permissions), word)
				if what == "" && len(failing) > 0 || what != "" && !slices.Contains(failing, what) {
					t.Errorf("without %s: %q, want %q", word, failing, what)
				}
			})
		}
	}
	if len(words) > 0 {
		t.Errorf("not tried: %q", words)
	}
	checks.Wait()
}

// failingWithout returns what fails, or costs more, for a user who lacks one of some permissions.
func failingWithout(t *testing.T, server *redistest.Server, permissions []string, lacks string) (failing []string) {
	t.Helper()
	prefix := newPrefix()
	permissions = slices.DeleteFunc(permissions, func(p string) bool { return p == lacks })
	_, err := server.Command(append([]string{"ACL", "SETUSER", prefix, "on", ">pw", "~" + prefix + "*", "-@all"}, permissions...)...)
	var findings []redisstore.Finding
	if err == nil {
		findings, err = redisstore.Check(t.Context(), "redis://"+prefix+":pw@"+server.Addr, &redisstore.Options{Prefix: prefix, Timeout: longTimeout})
	}
	if err != nil {
		t.Error(lacks, err)
	}
	for _, f := range findings {
		if f.State != redisstore.Works {
			failing = append(failing, f.What)
		}
	}
	return failing
}

// A server that executes no scripts for now is not taken for a proxy.
func TestCheckOfServerWithoutMemory(t *testing.T) {
	t.Parallel()
	oom := "-OOM command not allowed when used memory > 'maxmemory'."
	other := checkURL(t, redisproxy.Start(t, replies("EVAL", oom, "EVALSHA", oom), startServer(t)).URL())
	if f := other["scripts"]; f.State != redisstore.Broken || !strings.Contains(f.Detail, "OOM") || len(other) > 1 {
		t.Errorf("%v, want only the scripts broken", other)
	}
}

func TestCheckComparesClocks(t *testing.T) {
	fakeClockServer.Clock.Set(time.Date(2033, 5, 6, 7, 8, 9, 0, time.UTC))
	if f := checkURL(t, "redis://"+fakeClockServer.Addr, fakeClockServer)["clock"]; f.State != redisstore.Degraded {
		t.Errorf("%+v, want it degraded", f)
	}
}

// Whatever a server answers, there is an error or a finding, and no control character.
func TestCheckSurvivesHostileAnswers(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	long := strings.Repeat("\x1b]0;title\a\u202e", 10_000)
	for _, reply := range []string{
		"+OK", ":-9223372036854775808", "$-1", "*-1", "*0", "$5\r\nhello", "*2\r\n*1\r\n*1\r\n:1\r\n$1\r\nx", "*3\r\n:1\r\n:2\r\n:3",
		"-", "-ERR \x1b[31mred", "-MOVED 0 \x00", "-ERR " + long, "-NOSCRIPT no", "-" + long, "_", "#t", ",nan", ",1e300", "%1\r\n+a\r\n+b", "(123456789012345678901234567890",
		redisproxy.Close, "x",
	} {
		preset := redisproxy.Preset{Replies: map[string]string{}}
		for _, script := range redisstore.ScriptsOfCheck {
			preset.Replies[strings.ToUpper("EVALSHA "+script.SHA1)], preset.Replies[strings.ToUpper("EVAL "+script.Text)] = reply, reply
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // some are repeated until then
		findings, err := redisstore.Check(ctx, redisproxy.Start(t, preset, server).URL(), &redisstore.Options{Prefix: newPrefix()})
		cancel()
		if broken := countBroken(t, findings); err == nil && broken == 0 {
			t.Errorf("%.30q: nothing is broken: %v", reply, findings)
		}
	}
	info := "redis_version:" + long + "\r\nvalkey_version:\x00\r\nrole\r\nmaxmemory_policy:\x1b\r\nconnected_slaves:" + long + "\r\n:\r\n"
	preset := redisproxy.Preset{Replies: map[string]string{"INFO": fmt.Sprintf("$%d\r\n%s", len(info), info)}}
	other := checkURL(t, redisproxy.Start(t, preset, server).URL(), server)
	if other["eviction"].State != redisstore.Degraded {
		t.Errorf("%v", other)
	}
}

func countBroken(t *testing.T, findings []redisstore.Finding) (n int) {
	t.Helper()
	for _, f := range findings {
		if f.State == redisstore.Broken {
			n++
		}
		if strings.ContainsFunc(f.Detail+f.Advice, func(r rune) bool { return !unicode.IsPrint(r) }) || len(f.Detail) > 1000 {
			t.Errorf("%+q", f)
		}
	}
	return n
}

// Each state in which Redis decides nothing is told as what it is, with what to do about that state.
func TestCheckTellsTheStatesOfRedis(t *testing.T) {
	t.Parallel()
	closing := redisproxy.Preset{Replies: map[string]string{"HELLO": redisproxy.Close, "PING": redisproxy.Close}}
	for name, c := range map[string]struct {
		url          string
		what, advice string
	}{
		"full":                      {inState(t, "CONFIG SET maxmemory 1"), "scripts", "raise maxmemory"},
		"a replica":                 {inState(t, "REPLICAOF 127.0.0.1 1"), "scripts", "want its primary"},
		"a replica without primary": {inState(t, "CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"), "scripts", "want its primary"},
		"no password":               {inState(t, "CONFIG SET requirepass pw"), "connection", "put user and password"},
		"no commands":               {inState(t, "ACL SETUSER default -eval -evalsha"), "connection", "give the user"},
		"busy":                      {answering(t, "-BUSY Redis is busy running a script."), "connection", "SCRIPT KILL"},
		"loading":                   {answering(t, "-LOADING Redis is loading the dataset in memory"), "connection", "wait until it has"},
		"no HELLO for now":          {answering(t, "-TRYAGAIN later"), "connection", "see its log"},
		"HTTP":                      {answering(t, "HTTP/1.1 400 Bad Request"), "connection", "no Redis"},
		"ends connections":          {redisproxy.Start(t, closing, startServer(t)).URL(), "connection", "maxclients"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := checkURL(t, c.url)
			if f := other[c.what]; f.State != redisstore.Broken || !strings.Contains(f.Advice, c.advice) || countBroken(t, slices.Collect(maps.Values(other))) > 1 {
				t.Errorf("%+v, want only %s broken, and advice with %q", other, c.what, c.advice)
			}
		})
	}
}

// A server that loads its data answers HELLO and INFO, but no script. When it has loaded them, nothing is wrong with it.
func TestCheckOfServerThatLoads(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no")
	mustCommand(t, server, "EVAL", "for i = 1, 12000 do redis.call('SET', i, string.rep('x', 1100), 'PX', 600000) end", "0")
	mustCommand(t, server, "SAVE")
	server.Kill()
	restarted := make(chan error, 1)
	go func() { restarted <- server.Restart() }()
	loads := func() bool {
		info, err := server.Command("INFO", "persistence")
		return err == nil && strings.Contains(info, "loading:1")
	}
	waitFor(t, "the server loads", loads)
	findings, err := redisstore.Check(t.Context(), "redis://"+server.Addr, nil)
	if err != nil || !loads() {
		t.Fatal(err, loads())
	}
	for _, f := range findings {
		if f.State != redisstore.Works && (f.What != "scripts" || !strings.Contains(f.Advice, "wait until it has")) {
			t.Errorf("%+v, want only the scripts broken, because of the loading", f)
		}
	}
	if countBroken(t, findings) != 1 {
		t.Errorf("%+v, want the scripts broken", findings)
	}
	loaded := make(chan error, 1)
	go func() {
		_, err := server.Command("CONFIG", "SET", "key-load-delay", "0")
		loaded <- err
	}()
	if other := checkURL(t, "redis://"+server.Addr); len(other) > 0 {
		t.Errorf("%+v, want nothing wrong with a server that has loaded while it was checked", other)
	}
	if err := errors.Join(<-loaded, <-restarted); err != nil {
		t.Fatal(err)
	}
}

// Some replies are repeated by the store until the time of a call is over, so these are real texts of Redis 7.
func TestCheckHasAdviceForEachPassingReply(t *testing.T) {
	for reply, advice := range map[string]string{
		"NOREPLICAS Not enough good replicas to write. script: 2e97de6c, on @user_script:6.":               "fewer replicas",
		"READONLY You can't write against a read only replica. script: 2e97de6c, on @user_script:6.":       "want its primary",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                 "without its primary",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": "its disk",
		"OOM command not allowed when used memory > 'maxmemory'. script: 2e97de6c, on @user_script:6.":     "maxmemory",
		"LOADING Redis is loading the dataset in memory":                                                   "wait until it has",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":           "SCRIPT KILL",
		"ERR max number of clients reached":                                                                "maxclients",
		"ERR unknown command":                                                                              "other",
	} {
		if got := redisstore.PassingAdvice(errors.New(reply), "other"); !strings.Contains(got, advice) {
			t.Errorf("%s: got %q, want %q", reply, got, advice)
		}
	}
}

// inState returns the URL of a server of its own after some commands.
func inState(t *testing.T, commands ...string) string {
	t.Helper()
	server := redistest.StartForTest(t, redistest.Options{})
	for _, command := range commands {
		redistest.MustCommand(t, server, strings.Fields(command)...)
	}
	return "redis://" + server.Addr
}

// answering returns the URL of a server that answers each attempt to connect with a line.
func answering(t *testing.T, line string) string {
	t.Helper()
	return redisproxy.Start(t, replies("HELLO", line, "PING", line, "INFO", line), startServer(t)).URL()
}
