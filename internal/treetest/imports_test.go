package treetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

// This file checks which packages may import which, and a few other rules about
// the whole tree. It reads every Go file of the repository, whatever its build
// constraints, nested modules included.

const module = "github.com/penstock-io/penstock"

// competitors are the limiters that the benchmarks compare with.
var competitors = []string{
	"github.com/didip/tollbooth",
	"github.com/failsafe-go/failsafe-go",
	"github.com/go-chi/httprate",
	"github.com/go-redis/redis_rate",
	"github.com/juju/ratelimit",
	"github.com/sethvargo/go-limiter",
	"github.com/throttled/throttled",
	"github.com/ulule/limiter",
	"github.com/zeromicro/go-zero",
	"go.uber.org/ratelimit",
	"golang.org/x/time",
}

// daemonOnly are the modules that a user of the library should not download.
var daemonOnly = []string{
	"github.com/envoyproxy/go-control-plane",
	"github.com/gaissmai/bart",
	"github.com/goccy/go-yaml",
	"github.com/prometheus",
	"github.com/spf13/cobra",
	"github.com/spf13/pflag",
	"go.opentelemetry.io",
	"go.yaml.in/yaml",
	"google.golang.org/genproto",
	"google.golang.org/grpc",
	"google.golang.org/protobuf",
	"gopkg.in/yaml.v2",
	"gopkg.in/yaml.v3",
	"sigs.k8s.io/yaml",
}

// A rule forbids some packages to import others. Its patterns are:
//
//	.        the root package alone
//	./dir    the package in dir, and those below it
//	./...    every package of this repository
//	std      the standard library
//	*        every package there is
//	a/b      the package a/b, and those below it
type rule struct {
	name    string
	because string
	in      []string // the packages it is about …
	except  []string // … without these
	forbid  []string // what they must not import …
	unless  []string // … but for these
	by      []string // directories whose own package may, though not those below it
	tests   bool     // whether test files are bound by it as well
	reach   bool     // whether it is also about the packages of this repository that those import

	// An example of each: a file and an import that break the rule, and that
	// keep it.
	breaks, keeps [2]string
}

var rules = []rule{
	{
		name:    "the library imports only the standard library",
		because: "a program that limits rates in one process downloads nothing else",
		in:      []string{"."},
		forbid:  []string{"*"},
		unless:  []string{"std", "./internal"},
		breaks:  [2]string{"memory.go", "golang.org/x/sys/cpu"},
		keeps:   [2]string{"memory.go", module + "/internal/algorithm"},
	},
	{
		name:    "algorithms are pure",
		because: "an algorithm that reads a clock, takes a lock or does I/O cannot be replayed from a transcript",
		in:      []string{"./internal/algorithm"},
		forbid:  []string{"context", "crypto", "io", "log", "math/rand", "net", "os", "runtime", "sync", "syscall", "time"},
		breaks:  [2]string{"internal/algorithm/tokenbucket.go", "time"},
		keeps:   [2]string{"internal/algorithm/tokenbucket.go", "math/bits"},
	},
	{
		name:    "algorithms are arithmetic",
		because: "what puts scripts together, or reads text, is another layer's concern",
		in:      []string{"./internal/algorithm"},
		except:  []string{"./internal/algorithm/vectors", "./internal/algorithm/algorithmtest"}, // transcripts, as text; models
		forbid:  []string{"bytes", "embed", "encoding", "fmt", "regexp", "strconv", "strings", "text", "unicode"},
		breaks:  [2]string{"internal/algorithm/scripts.go", "strings"},
		keeps:   [2]string{"redisstore/internal/script/script.go", "strings"},
	},
	{
		name:    "algorithms import nothing of the module",
		because: "they are the lowest layer",
		in:      []string{"./internal/algorithm"},
		forbid:  []string{"*"},
		unless:  []string{"std", "./internal/algorithm"},
		breaks:  [2]string{"internal/algorithm/tokenbucket.go", module},
		keeps:   [2]string{"internal/algorithm/tokenbucket.go", "math/bits"},
	},
	{
		name:    "overload protection needs no limiter",
		because: "a program that only wants a circuit breaker downloads and learns nothing else",
		in:      []string{"./overload"},
		forbid:  []string{"*"},
		unless:  []string{"std", "./internal/breaker", "./internal/defaults", "./internal/monotime"},
		breaks:  [2]string{"overload/breaker.go", module},
		keeps:   [2]string{"overload/breaker.go", module + "/internal/breaker"},
	},
	{
		name:    "stores do not import their callers",
		because: "dependencies point downwards",
		in:      []string{"./redisstore", "./rowstore", "./sqlstore", "./storetest"},
		forbid:  []string{"./httplimit", "./grpclimit", "./rules", "./rulesource", "./rulelimit", "./server", "./cmd"},
		breaks:  [2]string{"redisstore/store.go", module + "/rules"},
		keeps:   [2]string{"redisstore/store.go", module},
	},
	{
		name:    "the Redis store adds one client",
		because: "a program with another client plugs it in, and downloads only that one",
		in:      []string{"./redisstore"},
		except:  []string{"./redisstore/goredis"},
		forbid:  []string{"*"},
		unless:  []string{"std", ".", "./internal", "./redisstore/internal", "github.com/redis/rueidis"},
		breaks:  [2]string{"redisstore/store.go", "github.com/redis/go-redis/v9"},
		keeps:   [2]string{"redisstore/client_rueidis.go", "github.com/redis/rueidis"},
	},
	{
		name:    "rows and SQL need no driver",
		because: "a program plugs in the driver that it has, and downloads only that one",
		in:      []string{"./rowstore", "./sqlstore"},
		except:  []string{"./sqlstore/pgxpipeline"},
		forbid:  []string{"*"},
		unless:  []string{"std", ".", "./rowstore", "./internal"},
		breaks:  [2]string{"sqlstore/transaction.go", "github.com/jackc/pgx/v5"},
		keeps:   [2]string{"sqlstore/transaction.go", "database/sql"},
	},
	{
		name:    "regions are stores",
		because: "a program that shares a limit over regions downloads a Redis client, and nothing else",
		in:      []string{"./regions"},
		forbid:  []string{"*"},
		unless:  []string{"std", ".", "./redisstore", "./internal"},
		breaks:  [2]string{"regions/store.go", module + "/server/client"},
		keeps:   [2]string{"regions/redis.go", module + "/redisstore"},
	},
	{
		name:    "middleware does not import the daemon",
		because: "it is for other servers",
		in:      []string{"./httplimit", "./grpclimit"},
		forbid:  []string{"./server", "./cmd"},
		breaks:  [2]string{"httplimit/handler.go", module + "/server"},
		keeps:   [2]string{"httplimit/handler.go", "net/http"},
	},
	{
		name:    "HTTP middleware imports only the standard library",
		because: "a program that protects a handler downloads nothing else; frameworks take a func(http.Handler) http.Handler",
		in:      []string{"./httplimit"},
		forbid:  []string{"*"},
		unless:  []string{"std", ".", "./internal", "./overload"}, // which imports no other
		breaks:  [2]string{"httplimit/gin.go", "github.com/gin-gonic/gin"},
		keeps:   [2]string{"httplimit/protect.go", module + "/internal/charge"},
	},
	{
		name:    "adapters use exported names only",
		because: "they are modules of their own, and would break when what is internal changes",
		in:      []string{"./adapters"},
		except:  []string{"./adapters/internal"},
		forbid:  []string{"./internal", "./adapters/internal", "./server"},
		breaks:  [2]string{"adapters/gin/ginlimit.go", module + "/internal/charge"},
		keeps:   [2]string{"adapters/gin/ginlimit.go", module + "/httplimit"},
	},
	{
		name:    "nothing imports the command",
		because: "it only wires the rest together",
		in:      []string{"./..."},
		except:  []string{"./cmd"},
		forbid:  []string{"./cmd"},
		breaks:  [2]string{"server/server.go", module + "/cmd/penstock"},
		keeps:   [2]string{"server/server.go", module},
	},
	protocolRule("envoy/rls", "httpapi"),
	protocolRule("httpapi", "respapi"),
	protocolRule("respapi", "adminapi"),
	protocolRule("adminapi", "httpapi"),
	protocolRule("envoy/rlqs", "envoy/rls"),
	{
		name:    "only the daemon imports Envoy's wing",
		because: "the daemon can be read, and would work, without Envoy's protocols: server alone adds them to it",
		in:      []string{"./..."},
		except:  []string{"./server/envoy", "./bench"}, // which plays the part of a control plane
		forbid:  []string{"./server/envoy"},
		by:      []string{"server"},
		breaks:  [2]string{"server/httpapi/server.go", module + "/server/envoy/rls"},
		keeps:   [2]string{"server/listeners.go", module + "/server/envoy/rls"},
	},
	{
		name:    "rules import no protocol",
		because: "the same rule must mean the same for every API",
		in:      []string{"./rules"},
		forbid:  []string{"./server", "net/http", "google.golang.org/grpc"},
		unless:  []string{"./rules"},
		breaks:  [2]string{"rules/load.go", "net/http"},
		keeps:   [2]string{"rules/load.go", module},
	},
	{
		name:    "sources of rules know rules, small parts of the product and the standard library only",
		because: "a program that reads rules from a configuration centre downloads no client of it",
		in:      []string{"./rulesource"},
		forbid:  []string{"*"},
		unless:  []string{"std", "./rules", "./internal"},
		breaks:  [2]string{"rulesource/etcd.go", "go.etcd.io/etcd/client/v3"},
		keeps:   [2]string{"rulesource/etcd.go", module + "/rules"},
	},
	{
		name:    "the xDS client knows rules and files only",
		because: "what rules are for is the engine's concern",
		in:      []string{"./server/envoy/xds"},
		except:  []string{"./server/envoy/xds/controlplanetest"},
		forbid:  []string{"./server"},
		unless:  []string{"./server/envoy/xds", "./rules", "./server/durable"},
		breaks:  [2]string{"server/envoy/xds/client.go", module + "/server/engine"},
		keeps:   [2]string{"server/envoy/xds/client.go", module + "/rules"},
	},
	{
		name:    "the engine imports no protocol",
		because: "every API must get the same result from it",
		in:      []string{"./server/engine"},
		forbid:  []string{"./server", "net/http", "google.golang.org/grpc", "github.com/envoyproxy/go-control-plane"},
		unless:  []string{"./server/engine", "./server/overrides", "./server/ahead", "./server/callers", "./server/hitlimit", "./server/requestlimits", "./server/rulestats", "./server/candidates", "./server/storepolicy", "./rules"},
		breaks:  [2]string{"server/engine/decide.go", "net/http"},
		keeps:   [2]string{"server/engine/decide.go", module + "/rules"},
	},
	{
		name:    "the engine and what it imports know no store",
		because: "the engine decides by any store that it is given, and a program with its own links no Redis client",
		in:      []string{"./server/engine"},
		reach:   true,
		forbid:  []string{"./redisstore", "./server/overrides/redishash", "github.com/redis/rueidis", "github.com/redis/go-redis"},
		breaks:  [2]string{"server/engine/decide.go", module + "/server/overrides/redishash"},
		keeps:   [2]string{"server/engine/decide.go", module + "/server/overrides"},
	},
	{
		name:    "rules in a program link no daemon and no store",
		because: "a program that limits by rules has its own store, listeners and metrics",
		in:      []string{"./rulelimit"},
		reach:   true,
		forbid: []string{
			"./server", "./cmd", "./redisstore", "./server/overrides/redishash", "github.com/redis/rueidis",
			"google.golang.org/grpc", "github.com/prometheus",
		},
		unless: []string{"./server/engine", "./server/overrides", "./server/ahead", "./server/callers", "./server/hitlimit", "./server/requestlimits", "./server/rulestats", "./server/candidates", "./server/storepolicy"},
		breaks: [2]string{"rulelimit/limiter.go", module + "/server/httpapi"},
		keeps:  [2]string{"rulelimit/limiter.go", module + "/server/engine"},
	},
	{
		name:    "packages that APIs share import no API",
		because: "dependencies point downwards",
		in:      []string{"./server/internal"},
		forbid:  []string{"./server"},
		unless:  []string{"./server/internal", "./server/audit", "./server/engine", "./server/ahead", "./server/callers", "./server/hitlimit", "./server/requestlimits", "./server/rulestats", "./server/candidates", "./server/storepolicy", "./rules"},
		breaks:  [2]string{"server/internal/requestlog/reason.go", module + "/server/httpapi"},
		keeps:   [2]string{"server/internal/requestlog/reason.go", module + "/server/engine"},
	},
	{
		name:    "dependencies of the daemon stay in the daemon",
		because: "users of the library need neither gRPC nor Prometheus, YAML or OpenTelemetry",
		in:      []string{"./..."},
		except:  []string{"./server", "./rules", "./grpclimit", "./cmd", "./internal/yamlerror", "./internal/sentinelrules", "./faults", "./examples", "./bench", "./deploy", "./adapters"},
		forbid:  daemonOnly,
		tests:   true,
		breaks:  [2]string{"httplimit/metrics.go", "github.com/prometheus/client_golang/prometheus"},
		keeps:   [2]string{"server/metrics.go", "github.com/prometheus/client_golang/prometheus"},
	},
	{
		name:    "the library does not log",
		because: "what to log, and where, is the program's choice; errors that it does not handle go through lograte",
		in:      []string{".", "./internal", "./redisstore", "./rowstore", "./sqlstore", "./regions", "./httplimit", "./grpclimit"},
		except:  []string{"./internal/lograte"},
		forbid:  []string{"log"},
		breaks:  [2]string{"memory.go", "log/slog"},
		keeps:   [2]string{"server/server.go", "log/slog"},
	},
	{
		name:    "only tests import testing",
		because: "it adds its flags and its code to every program that links it",
		in:      []string{"./..."},
		except:  []string{"./storetest", "./internal/fixedseed", "./internal/redistest", "./internal/sqltest", "./internal/wraptest", "./examples/internal/demotest", "./adapters/internal/adaptertest", "./bench"}, // test kits; benchmarks
		forbid:  []string{"testing", "./storetest", "./internal/fixedseed", "./internal/redistest", "./internal/sqltest", "./internal/wraptest", "pgregory.net/rapid", "github.com/anishathalye/porcupine", "github.com/rogpeppe/go-internal"},
		breaks:  [2]string{"clock.go", "testing"},
		keeps:   [2]string{"clock_test.go", "testing"},
	},
	{
		name:    "competitors stay in bench",
		because: "they are measured, not depended on",
		in:      []string{"./..."},
		except:  []string{"./bench", "./adapters/go-zero"}, // a framework that has a limiter too
		forbid:  competitors,
		tests:   true,
		breaks:  [2]string{"limiter_test.go", "golang.org/x/time/rate"},
		keeps:   [2]string{"bench/memory/main.go", "golang.org/x/time/rate"},
	},
	{
		name:    "nothing depends on bench",
		because: "it is a module of its own",
		in:      []string{"./..."},
		except:  []string{"./bench"},
		forbid:  []string{"./bench"},
		tests:   true,
		breaks:  [2]string{"limiter_test.go", module + "/bench/memory"},
		keeps:   [2]string{"limiter_test.go", module},
	},
}

// protocolRule forbids one of the daemon's protocols to import another.
func protocolRule(protocol, other string) rule {
	file := "server/" + protocol + "/serve.go"
	return rule{
		name:    "protocols do not import each other",
		because: "each must be readable, and removable, alone",
		in:      []string{"./server/" + protocol},
		forbid:  []string{"./server"},
		unless:  []string{"./server/" + protocol, "./server/audit", "./server/engine", "./server/overrides", "./server/ahead", "./server/callers", "./server/hitlimit", "./server/requestlimits", "./server/rulestats", "./server/candidates", "./server/storepolicy", "./rules", "./server/simulator", "./server/observe", "./server/page", "./server/internal"},
		breaks:  [2]string{file, module + "/server/" + other},
		keeps:   [2]string{file, module + "/rules"},
	}
}

func TestImportRulesHold(t *testing.T) {
	files := repository(t)
	for _, r := range rules {
		for _, complaint := range r.check(files) {
			t.Error(complaint)
		}
	}
}

func TestImportRulesCanFail(t *testing.T) {
	for _, r := range rules {
		if got := r.check(treeOf(t, r.breaks)); len(got) != 1 {
			t.Errorf("%s: %s importing %s gave %q, want one complaint", r.name, r.breaks[0], r.breaks[1], got)
		}
		if got := r.check(treeOf(t, r.keeps)); len(got) != 0 {
			t.Errorf("%s: %s importing %s gave %q, want none", r.name, r.keeps[0], r.keeps[1], got)
		}
	}
}

// treeOf returns a tree of one file with one import.
func treeOf(t *testing.T, example [2]string) []file {
	src := fmt.Sprintf("package p\n\nimport _ %q\n", example[1])
	return readTree(t, fstest.MapFS{example[0]: {Data: []byte(src)}})
}

func TestPackagesHaveComments(t *testing.T) {
	for _, dir := range undocumented(repository(t)) {
		t.Errorf("%s: the package has no comment", dir)
	}

	fake := readTree(t, fstest.MapFS{
		"doc.go":            {Data: []byte("// Package a has one.\npackage a\n")},
		"other.go":          {Data: []byte("package a\n")},
		"silent/silent.go":  {Data: []byte("package silent\n")},
		"tests/all_test.go": {Data: []byte("package tests\n")},
	})
	if got, want := undocumented(fake), []string{"silent"}; !slices.Equal(got, want) {
		t.Errorf("undocumented packages of the fake tree: got %q, want %q", got, want)
	}
}

// undocumented returns the directories of the packages without a comment.
// Those that consist of tests need none.
func undocumented(files []file) []string {
	documented := map[string]bool{}
	for _, f := range files {
		if !f.test {
			documented[f.dir] = documented[f.dir] || f.comment
		}
	}
	var dirs []string
	for dir, ok := range documented {
		if !ok {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}

func TestPackageNamesAreSpecific(t *testing.T) {
	for _, name := range unspecificNames(repository(t)) {
		t.Errorf("%s: the package name is too general, so anything may end up there", name)
	}

	fake := readTree(t, fstest.MapFS{
		"a/a.go": {Data: []byte("package helpers\n")},
		"b/b.go": {Data: []byte("package rules\n")},
	})
	if got, want := unspecificNames(fake), []string{"a/a.go: package helpers"}; !slices.Equal(got, want) {
		t.Errorf("general names of the fake tree: got %q, want %q", got, want)
	}
}

func unspecificNames(files []file) []string {
	empty := []string{"util", "utils", "common", "helper", "helpers", "types", "models"}
	var names []string
	for _, f := range files {
		if slices.Contains(empty, strings.TrimSuffix(f.pkg, "_test")) {
			names = append(names, fmt.Sprintf("%s: package %s", f.path, f.pkg))
		}
	}
	return names
}

// In a testing/synctest bubble a sleep takes no time and is exact. Elsewhere it is
// slow, and sometimes too short. Only paced load against real servers needs it.
func TestTestsSleepOnlyInSynctest(t *testing.T) {
	for _, name := range sleepingTests(repository(t)) {
		t.Errorf("%s calls time.Sleep and does not import testing/synctest", name)
	}

	sleep := "func f() { time.Sleep(1) }\n"
	fake := readTree(t, fstest.MapFS{
		"slow_test.go":   {Data: []byte("package p\n\nimport \"time\"\n\n" + sleep)},
		"bubble_test.go": {Data: []byte("package p\n\nimport (\n\"testing/synctest\"\n\"time\"\n)\n\n" + sleep)},
	})
	if got, want := sleepingTests(fake), []string{"slow_test.go"}; !slices.Equal(got, want) {
		t.Errorf("sleepingTests of the fake tree: got %q, want %q", got, want)
	}
}

func sleepingTests(files []file) []string {
	var names []string
	for _, f := range files {
		paced := strings.HasPrefix(f.path, "faults/")
		if f.test && f.sleeps && !paced && !slices.Contains(f.imports, "testing/synctest") {
			names = append(names, f.path)
		}
	}
	return names
}

// A run must be green or red by the code alone, not by the cases that it draws.
func TestRandomTestsHaveAFixedSeed(t *testing.T) {
	for _, dir := range randomTests(repository(t)) {
		t.Errorf("tests in %s draw random cases and do not import %s/internal/fixedseed", dir, module)
	}

	fake := readTree(t, fstest.MapFS{
		"a/a_test.go": {Data: []byte("package a\n\nimport _ \"pgregory.net/rapid\"\n")},
		"b/b_test.go": {Data: []byte("package b\n\nimport _ \"" + module + "/storetest\"\n")},
		"c/c_test.go": {Data: []byte("package c\n\nimport _ \"pgregory.net/rapid\"\n")},
		"c/d_test.go": {Data: []byte("package c\n\nimport _ \"" + module + "/internal/fixedseed\"\n")},
	})
	if got, want := randomTests(fake), []string{"a", "b"}; !slices.Equal(got, want) {
		t.Errorf("randomTests of the fake tree: got %q, want %q", got, want)
	}
}

// randomTests returns the directories whose tests draw new cases in each run.
func randomTests(files []file) (dirs []string) {
	fixed := map[string]bool{"internal/fixedseed": true}
	for _, f := range files {
		fixed[f.dir] = fixed[f.dir] || f.test && slices.Contains(f.imports, module+"/internal/fixedseed")
	}
	for _, f := range files {
		draws := slices.Contains(f.imports, "pgregory.net/rapid") || slices.Contains(f.imports, module+"/storetest")
		if f.test && draws && !fixed[f.dir] && !slices.Contains(dirs, f.dir) {
			dirs = append(dirs, f.dir)
		}
	}
	return dirs
}

func TestGoModRequirements(t *testing.T) {
	for _, complaint := range checkGoMod(t, "../../go.mod") {
		t.Errorf("go.mod: %s", complaint)
	}

	fake := filepath.Join(t.TempDir(), "go.mod")
	src := "module a\n\nrequire (\n\tgolang.org/x/time v0.9.0\n\texample.com/b v1.0.0\n)\n\nreplace example.com/b => ../b\n"
	if err := os.WriteFile(fake, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"replaces example.com/b, which has no effect in modules that depend on this one",
		"requires golang.org/x/time, which belongs into bench",
	}
	if got := checkGoMod(t, fake); !slices.Equal(got, want) {
		t.Errorf("complaints about\n%s\ngot %q, want %q", src, got, want)
	}
}

func checkGoMod(t *testing.T, name string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", name).Output()
	if err != nil {
		t.Fatalf("go mod edit -json %s: %v", name, err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatalf("go mod edit -json %s: %v", name, err)
	}
	var complaints []string
	for _, r := range mod.Replace {
		complaints = append(complaints, "replaces "+r.Old.Path+", which has no effect in modules that depend on this one")
	}
	for _, r := range mod.Require {
		if !r.Indirect && matchesAny(competitors, r.Path) {
			complaints = append(complaints, "requires "+r.Path+", which belongs into bench")
		}
	}
	return complaints
}

// check returns the imports that break the rule.
func (r rule) check(files []file) []string {
	var complaints []string
	bound := r.packages(files)
	for _, f := range files {
		if f.test && !r.tests || !bound[path.Join(module, f.dir)] || slices.Contains(r.by, f.dir) {
			continue
		}
		for _, imported := range f.imports {
			if matchesAny(r.forbid, imported) && !matchesAny(r.unless, imported) {
				complaints = append(complaints, fmt.Sprintf("%s imports %s, but %s: %s", f.path, imported, r.name, r.because))
			}
		}
	}
	return complaints
}

// packages returns the packages that the rule is about.
func (r rule) packages(files []file) map[string]bool {
	bound := map[string]bool{}
	for _, f := range files {
		pkg := path.Join(module, f.dir)
		bound[pkg] = matchesAny(r.in, pkg) && !matchesAny(r.except, pkg)
	}
	for again := r.reach; again; {
		again = false
		for _, f := range files {
			if f.test || !bound[path.Join(module, f.dir)] {
				continue
			}
			for _, imported := range f.imports {
				if within(module, imported) && !bound[imported] {
					bound[imported], again = true, true
				}
			}
		}
	}
	return bound
}

// A rule about what packages reach finds an import that is not their own.
func TestImportRulesReachThroughOtherPackages(t *testing.T) {
	client := "github.com/redis/rueidis"
	r := rule{in: []string{"./engine"}, reach: true, forbid: []string{client}}
	imports := func(name string) *fstest.MapFile {
		return &fstest.MapFile{Data: fmt.Appendf(nil, "package p\n\nimport _ %q\n", name)}
	}
	tree := readTree(t, fstest.MapFS{"engine/a.go": imports(module + "/table"), "table/b.go": imports(client), "other/c.go": imports(client)})
	if got := r.check(tree); len(got) != 1 || !strings.HasPrefix(got[0], "table/b.go imports") {
		t.Errorf("got %q, want a complaint about table/b.go", got)
	}
}

// matchesAny reports whether one of the patterns matches the package.
func matchesAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, pkg) })
}

func matches(pattern, pkg string) bool {
	switch pattern {
	case "*":
		return true
	case ".":
		return pkg == module
	case "./...":
		return within(module, pkg)
	case "std":
		first, _, _ := strings.Cut(pkg, "/")
		return !strings.Contains(first, ".")
	}
	if dir, ok := strings.CutPrefix(pattern, "./"); ok {
		return within(path.Join(module, dir), pkg)
	}
	return within(pattern, pkg)
}

// within reports whether the package is the parent or below it.
func within(parent, pkg string) bool {
	return pkg == parent || strings.HasPrefix(pkg, parent+"/")
}

// A file is what the rules need of one Go file.
type file struct {
	path    string // from the root of the tree
	dir     string // "." for the root
	pkg     string // as its package clause has it
	test    bool
	imports []string
	comment bool // whether it has a package comment
	sleeps  bool // whether it calls time.Sleep
}

// readTree reads all Go files, but for those that the go command ignores too.
var readRepository = sync.OnceValues(func() ([]file, error) { return readFiles(os.DirFS("../..")) })

// repository returns the files of this repository.
func repository(t *testing.T) []file {
	t.Helper()
	files, err := readRepository()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func readTree(t *testing.T, tree fs.FS) []file {
	t.Helper()
	files, err := readFiles(tree)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func readFiles(tree fs.FS) (files []file, err error) {
	err = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && ignored(name):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		f, err := readFile(tree, name)
		files = append(files, f)
		return err
	})
	if err == nil && len(files) == 0 {
		err = errors.New("found no Go files")
	}
	return files, err
}

func ignored(dir string) bool {
	base := path.Base(dir)
	return dir != "." && (base[0] == '.' || base[0] == '_' || base == "testdata")
}

func readFile(tree fs.FS, name string) (file, error) {
	src, err := fs.ReadFile(tree, name)
	if err != nil {
		return file{}, err
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return file{}, err
	}
	f := file{
		path:    name,
		dir:     path.Dir(name),
		pkg:     parsed.Name.Name,
		test:    strings.HasSuffix(name, "_test.go"),
		comment: parsed.Doc != nil,
		sleeps:  sleeps(parsed),
	}
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return file{}, err
		}
		f.imports = append(f.imports, imported)
	}
	return f, nil
}

// sleeps reports whether a file mentions time.Sleep.
func sleeps(f *ast.File) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
			pkg, ok := sel.X.(*ast.Ident)
			found = found || ok && pkg.Name == "time"
		}
		return true
	})
	return found
}
