package goredis_test

import (
	"archive/zip"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	mainModule = "github.com/penstock-io/penstock"
	thisModule = mainModule + "/redisstore/goredis"
)

// A program outside this repository can require this module: once both modules are
// tagged, go get finds the version of the main module that go.mod requires. The
// replacement in go.mod does not apply to other modules.
func TestModuleCanBeFetched(t *testing.T) {
	version := requiredVersion(t)
	proxy := t.TempDir()
	publish(t, proxy, mainModule, version, "../..")
	publish(t, proxy, thisModule, version, ".")

	consumer := t.TempDir()
	write(t, filepath.Join(consumer, "go.mod"), "module example.com/consumer\n\ngo 1.26.0\n")
	write(t, filepath.Join(consumer, "main.go"), consumerProgram)
	goCommand(t, consumer, proxy, "get", thisModule+"@"+version)
	goCommand(t, consumer, proxy, "list", "-deps", ".") // fails if a package is missing
	if !testing.Short() {
		goCommand(t, consumer, proxy, "build", ".") // compiles all dependencies anew
	}
	if got := goCommand(t, consumer, proxy, "list", "-m", mainModule); strings.TrimSpace(got) != mainModule+" "+version {
		t.Errorf("the program uses %swant %s %s", got, mainModule, version)
	}
}

const consumerProgram = `package main

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/redisstore/goredis"
	"github.com/redis/go-redis/v9"
)

func main() {
	client, err := goredis.New(redis.NewClient(&redis.Options{ContextTimeoutEnabled: true}))
	if err != nil {
		panic(err)
	}
	store, err := redisstore.New(client, nil)
	if err != nil {
		panic(err)
	}
	lim, err := penstock.New(store, penstock.PerMinute(30))
	if err != nil {
		panic(err)
	}
	fmt.Println(lim.Allow(context.Background(), "user:42"))
}
`

// requiredVersion returns the version of the main module in go.mod.
func requiredVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^\s+` + mainModule + ` (v\d+\.\d+\.\d+)$`).FindSubmatch(text)
	if m == nil || string(m[1]) == "v0.0.0" {
		t.Fatalf("go.mod requires no released version of %s", mainModule)
	}
	return string(m[1])
}

// publish writes a module into a directory that the go command can use as a proxy.
func publish(t *testing.T, proxy, module, version, dir string) {
	t.Helper()
	versions := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := json.Marshal(map[string]string{"Version": version})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(versions, "list"), version+"\n")
	write(t, filepath.Join(versions, version+".info"), string(info))
	write(t, filepath.Join(versions, version+".mod"), string(mod))
	zipModule(t, filepath.Join(versions, version+".zip"), module+"@"+version+"/", dir)
}

// zipModule writes the archive of a module: all of its files, without those of other
// modules below it.
func zipModule(t *testing.T, name, prefix, dir string) {
	t.Helper()
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	archive := zip.NewWriter(file)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (d.Name()[0] == '.' || isModule(path)):
			return filepath.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		return addToArchive(archive, prefix, dir, path)
	})
	if err == nil {
		err = archive.Close()
	}
	if closed := file.Close(); err != nil || closed != nil {
		t.Fatal(err, closed)
	}
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func addToArchive(archive *zip.Writer, prefix, dir, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	w, err := archive.Create(prefix + filepath.ToSlash(name))
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// goCommand runs the go command in a module. Modules of others come from the cache or
// the usual proxy; the modules in the test go into a cache of their own.
func goCommand(t *testing.T, dir, proxy string, args ...string) string {
	t.Helper()
	cache := goEnv(t, "GOMODCACHE")
	command := exec.CommandContext(t.Context(), "go", args...)
	command.Dir = dir
	command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GOSUMDB=off",
		"GOMODCACHE="+filepath.Join(proxy, "cache"),
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(cache, "cache", "download")+","+goEnv(t, "GOPROXY"))
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
